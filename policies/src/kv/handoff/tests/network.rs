//! Both ends over a simulated link in virtual time: whatever is slow, lost, late, doubled, corrupt, cancelled or dead,
//! each end comes to one end, and nothing is written where it must not.

use std::collections::BTreeMap;
use std::panic::{UnwindSafe, catch_unwind, resume_unwind};

use super::*;
use crate::rng::{Rng, mix64};

mod decode;
mod prefill;

use decode::DecodeEnd;
use prefill::PrefillEnd;

/// What a page of the sequence holds when it is right.
fn content(page: u32) -> u64 {
    mix64(u64::from(page) + 1)
}

/// What a page holds that belongs to somebody else.
const FOREIGN: u64 = 0xdead;

/// What goes wrong in a run; rolled for each, so that half of them are calm in most respects.
#[derive(Clone, Debug, Default)]
struct Faults {
    /// The link is cut then.
    cut: Option<Time>,
    /// And each end is told so after this; never, where none (a black hole).
    told: [Option<Span>; 2],
    /// A page of this message (counted from 0) is corrupt.
    corrupt: Option<u32>,
    /// The import or export of this number fails.
    import_fails: Option<u32>,
    export_fails: Option<u32>,
    /// The scheduler refuses, at once or in the middle.
    refuses: bool,
    breaks: Option<Time>,
    /// It computes another number of tokens.
    wrong_tokens: bool,
    client_leaves: Option<Time>,
    prefill_cancels: Option<Time>,
    /// The process dies and is started again.
    decode_dies: Option<Time>,
    prefill_dies: Option<Time>,
    /// The prefill worker never does anything.
    silent: bool,
    /// Messages are delivered again later, to this transfer and to another one.
    echoes: bool,
}

impl Faults {
    fn is_calm(&self) -> bool {
        format!("{self:?}") == format!("{:?}", Self { echoes: self.echoes, ..Self::default() })
    }

    fn random(rng: &mut Rng) -> Self {
        let at = |rng: &mut Rng, odds| (rng.below(odds) == 0).then(|| ms(rng.below(120)));
        let number = |rng: &mut Rng| (rng.below(12) == 0).then(|| rng.below(4) as u32);
        let told = |rng: &mut Rng| (rng.below(4) > 0).then(|| Span::from_millis(rng.below(40)));
        let cut = at(rng, 4);
        Self {
            cut,
            told: if cut.is_some() { [told(rng), told(rng)] } else { [None; 2] },
            corrupt: number(rng),
            import_fails: number(rng),
            export_fails: number(rng),
            refuses: rng.below(20) == 0,
            breaks: at(rng, 20),
            wrong_tokens: rng.below(20) == 0,
            client_leaves: at(rng, 5),
            prefill_cancels: at(rng, 16),
            decode_dies: at(rng, 16),
            prefill_dies: at(rng, 12),
            silent: rng.below(40) == 0,
            echoes: rng.below(3) == 0,
        }
    }
}

/// One transfer to simulate.
#[derive(Clone, Debug)]
struct Case {
    config: HandoffConfig,
    page: u32,
    tokens: u32,
    cached: u32,
    /// Tokens of a step.
    chunk: u32,
    want_pages: bool,
    ends: bool,
    /// The receiver gets its pages when the sender begins.
    late: bool,
    faults: Faults,
}

impl Case {
    fn random(rng: &mut Rng) -> Self {
        let page = [1, 2, 4, 16][rng.below(4) as usize];
        let chunk = page * (1 + rng.below(4) as u32);
        // All lengths around pages and chunks.
        let base = [page, chunk][rng.below(2) as usize] * rng.below(6) as u32;
        let tokens = (base + rng.below(3) as u32).saturating_sub(1).max(1);
        let full = tokens / page;
        let cached = [0, full, rng.below(u64::from(full) + 1) as u32][rng.below(3) as usize];
        let want_pages = rng.below(8) > 0;
        let faults = if rng.below(4) == 0 {
            Faults { echoes: rng.below(2) == 0, ..Faults::default() }
        } else {
            Faults::random(rng)
        };
        Self {
            config: HandoffConfig {
                window_pages: 1 + rng.below(6) as u32,
                pages_per_message: 1 + rng.below(5) as u32,
                accept_within: Span::from_millis(60),
                progress_within: Span::from_millis(90),
                lease: Span::from_millis(70 + rng.below(200)),
            },
            page,
            tokens,
            cached,
            chunk,
            want_pages,
            ends: !want_pages || rng.below(6) == 0,
            late: rng.below(2) == 0,
            faults,
        }
    }

    fn all_pages(&self) -> u32 {
        self.tokens.div_ceil(self.page)
    }
}

/// To the sender.
#[derive(Clone, Copy, Debug)]
enum ToPrefill {
    Ask(Asked),
    Event(SenderEvent),
}

/// To the receiver.
#[derive(Clone, Debug)]
enum ToDecode {
    Event(ReceiverEvent),
    /// Pages and what they hold.
    Pages(ReceiverEvent, Vec<u64>),
}

/// What happens at a time. Jobs of an end die with its process (`life`).
#[derive(Clone, Debug)]
enum Happening {
    AtPrefill(TransferKey, ToPrefill),
    AtDecode(TransferKey, ToDecode),
    LostAtPrefill,
    LostAtDecode,
    Submitted,
    Step,
    Exported(Piece),
    Written(Piece),
    Reserved,
    Imported(Piece),
    ClientLeaves,
    PrefillCancels,
    PrefillBreaks,
    DecodeDies,
    PrefillDies,
}

/// The heap of what is to come, and the link.
struct Net {
    rng: Rng,
    key: TransferKey,
    now: Time,
    heap: BTreeMap<(Time, u64), Happening>,
    serial: u64,
    /// When the message before arrives, in each direction.
    before: [Time; 2],
    faults: Faults,
    /// Nothing passes any more.
    dead: bool,
    calm: bool,
    /// All messages that were ever sent.
    log: Vec<Happening>,
}

impl Net {
    fn after(&mut self, span: Span, what: Happening) {
        self.at(self.now + span, what);
    }

    fn at(&mut self, at: Time, what: Happening) {
        self.serial += 1;
        self.heap.insert((at, self.serial), what);
    }

    /// A short time, now and then a longer one; within all limits where nothing is to go wrong.
    fn some_time(&mut self) -> Span {
        let most = match self.rng.below(if self.calm { 12 } else { 16 }) {
            0..=11 => 3_000,
            12..=14 => 20_000,
            _ => 110_000,
        };
        Span::from_micros(self.rng.below(most))
    }

    fn send(&mut self, direction: usize, what: Happening) {
        let at = (self.now + self.some_time()).max(self.before[direction]);
        self.before[direction] = at;
        self.log.push(what.clone());
        // What is under way when the link is cut does not arrive whole, and so not at all.
        if self.dead || self.faults.cut.is_some_and(|cut| at >= cut) {
            return;
        }
        if self.faults.echoes && self.rng.below(4) == 0 {
            let later = at + Span::from_millis(self.rng.below(400));
            self.at(later, self.misread(what.clone()));
        }
        self.at(at, what);
    }

    /// The same message of another transfer or another life, or this one once more.
    fn misread(&self, mut what: Happening) -> Happening {
        // Credit that comes twice breaks a link's promise, and its bound is the receiver's to keep.
        let credit = matches!(what, Happening::AtPrefill(_, ToPrefill::Event(SenderEvent::Credit { .. })));
        if let Happening::AtPrefill(key, _) | Happening::AtDecode(key, _) = &mut what {
            match self.serial % 3 {
                0 => key.generation += 1,
                1 => key.transfer += 1,
                _ if credit => key.generation += 1,
                _ => {}
            }
        }
        what
    }
}

/// Runs a transfer until nothing is left to happen.
struct World {
    case: Case,
    net: Net,
    decode: DecodeEnd,
    prefill: PrefillEnd,
}

/// What came of it.
struct Ended {
    outcome: Option<Outcome>,
    moved: u32,
    ignored: u32,
    sent: Vec<Happening>,
}

impl World {
    fn new(case: Case, rng: Rng, key: TransferKey) -> Self {
        let net = Net {
            rng,
            key,
            now: ms(0),
            heap: BTreeMap::new(),
            serial: 0,
            before: [ms(0); 2],
            dead: false,
            calm: case.faults.is_calm(),
            log: Vec::new(),
            faults: case.faults.clone(),
        };
        Self { decode: DecodeEnd::new(&case, key), prefill: PrefillEnd::new(&case), net, case }
    }

    fn run(mut self) -> Ended {
        self.plan_faults();
        self.decode.start(&mut self.net);
        for _ in 0..20_000 {
            let next = self.net.heap.first_key_value().map(|((at, _), _)| *at);
            let due = [self.decode.deadline(), self.prefill.deadline()].into_iter().flatten().min();
            let Some(at) = next.into_iter().chain(due).min() else {
                return self.verify();
            };
            assert!(at >= self.net.now, "a deadline that passed is still there");
            self.net.now = at;
            if next == Some(at) {
                let (_, what) = self.net.heap.pop_first().expect("there is one");
                self.happen(what);
            } else {
                self.decode.tick(&mut self.net);
                self.prefill.tick(&mut self.net);
            }
        }
        panic!("it never ends");
    }

    fn plan_faults(&mut self) {
        let faults = self.case.faults.clone();
        let net = &mut self.net;
        if let Some(cut) = faults.cut {
            let [decode, prefill] = faults.told.map(|told| told.map(|span| cut + span));
            decode.into_iter().for_each(|at| net.at(at, Happening::LostAtDecode));
            prefill.into_iter().for_each(|at| net.at(at, Happening::LostAtPrefill));
        }
        for (at, what) in [
            (faults.client_leaves, Happening::ClientLeaves),
            (faults.prefill_cancels, Happening::PrefillCancels),
            (faults.breaks, Happening::PrefillBreaks),
            (faults.decode_dies, Happening::DecodeDies),
            (faults.prefill_dies, Happening::PrefillDies),
        ] {
            at.into_iter().for_each(|at| net.at(at, what.clone()));
        }
    }

    fn happen(&mut self, what: Happening) {
        let net = &mut self.net;
        match what {
            Happening::AtPrefill(key, message) => self.prefill.hear(net, key, message),
            Happening::AtDecode(key, message) => self.decode.hear(net, key, message),
            Happening::LostAtPrefill => self.prefill.link_lost(net),
            Happening::LostAtDecode => self.decode.link_lost(net),
            Happening::Submitted => self.prefill.submitted(net),
            Happening::Step => self.prefill.step(net),
            Happening::Exported(piece) => self.prefill.exported(net, piece),
            Happening::Written(piece) => self.prefill.written(net, piece),
            Happening::Reserved => self.decode.reserved(net),
            Happening::Imported(piece) => self.decode.imported(net, piece),
            Happening::ClientLeaves => self.decode.cancel(net),
            Happening::PrefillCancels => self.prefill.cancel(net),
            Happening::PrefillBreaks => self.prefill.breaks(net),
            Happening::DecodeDies => {
                self.decode.die();
                self.net.dead = true;
                self.told_later(Happening::LostAtPrefill);
            }
            Happening::PrefillDies => {
                self.prefill.die();
                self.net.dead = true;
                self.told_later(Happening::LostAtDecode);
            }
        }
    }

    /// A process died: the other end hears of it at once, later or never.
    fn told_later(&mut self, what: Happening) {
        if self.net.rng.below(4) > 0 {
            let span = self.net.some_time();
            self.net.after(span, what);
        }
    }

    fn verify(self) -> Ended {
        let lease = self.case.config.lease;
        self.decode.verify(lease);
        self.prefill.verify(lease);
        let (decode, prefill) = (self.decode.report(), self.prefill.report());
        if self.case.faults.is_calm() {
            let report = decode.expect("it ended");
            assert_eq!(report.outcome, Outcome::Committed, "nothing went wrong");
            assert_eq!(prefill.expect("it ended").outcome, Outcome::Committed);
            let all = self.case.all_pages() - self.case.cached;
            let want = if self.case.want_pages { all } else { 0 };
            assert!(report.pages == want || self.case.ends && report.pages <= want, "{}", report.pages);
            assert_eq!(report.bytes, u64::from(report.pages) * 1000);
        }
        Ended {
            outcome: decode.map(|r| r.outcome),
            moved: decode.map_or(0, |r| r.pages),
            ignored: self.decode.ignored() + self.prefill.ignored(),
            sent: self.net.log,
        }
    }
}

/// How many pages move when nothing goes wrong.
pub(super) fn undisturbed(tokens: u32, page: u32, chunk: u32, cached: u32, config: HandoffConfig) -> u32 {
    let (want_pages, ends) = (true, false);
    let faults = Faults::default();
    let case = Case { config, page, tokens, cached, chunk, want_pages, ends, late: false, faults };
    World::new(case, Rng::new(u64::from(tokens)), KEY).run().moved
}

fn named(seed: u64, case: &Case, body: impl FnOnce() -> Ended + UnwindSafe) -> Ended {
    catch_unwind(body).unwrap_or_else(|panic| {
        println!("seed {seed}: {case:#?}");
        resume_unwind(panic)
    })
}

#[test]
fn random_transfers_end_clean() {
    panic_on_broken();
    let mut seen: BTreeMap<&'static str, u32> = BTreeMap::new();
    let mut ignored = 0;
    for seed in 0..20_000 {
        let mut rng = Rng::new(seed);
        let case = Case::random(&mut rng);
        let world = case.clone();
        let ended = named(seed, &case, move || World::new(world, rng, KEY).run());
        *seen.entry(ended.outcome.map_or("died", Outcome::as_str)).or_default() += 1;
        ignored += ended.ignored;
    }
    println!("{seen:?}, {ignored} events ignored");
    for name in ["committed", "died", "refused", "not_accepted", "no_progress", "link_lost", "cancelled"] {
        assert!(seen.get(name).is_some_and(|n| *n > 50), "the runs are dull: {seen:?}");
    }
    for name in ["lease", "bad_checksum", "import_failed", "wrong_tokens", "cancelled_by_peer"] {
        assert!(seen.get(name).is_some_and(|n| *n > 20), "the runs are dull: {seen:?}");
    }
    assert!(ignored > 1000, "nothing was late: {ignored}");
}

/// An end dies and is started again at the same address: everything that its former life said, and was told, comes
/// late, in the middle of the next transfer, which does not mind.
#[test]
fn b54_a_restarted_end_is_not_disturbed_by_its_former_life() {
    panic_on_broken();
    let mut late = 0;
    for seed in 0..2000 {
        let mut rng = Rng::new(seed);
        let mut case = Case::random(&mut rng);
        let died = Some(ms(rng.below(30)));
        case.faults = match rng.below(2) {
            0 => Faults { decode_dies: died, ..Faults::default() },
            _ => Faults { prefill_dies: died, ..Faults::default() },
        };
        let before = World::new(case.clone(), rng.clone(), KEY).run();
        case.faults = Faults::default();
        let next = TransferKey { generation: KEY.generation + 1, ..KEY };
        let mut world = World::new(case.clone(), rng, next);
        for what in before.sent {
            let at = ms(world.net.rng.below(40));
            world.net.at(at, what);
        }
        let ended = named(seed, &case, move || world.run());
        assert_eq!(ended.outcome, Some(Outcome::Committed), "seed {seed}");
        late += ended.ignored;
    }
    assert!(late > 2000, "nothing was late: {late}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..50 {
        let run = || {
            let mut rng = Rng::new(seed);
            let case = Case::random(&mut rng);
            let ended = World::new(case, rng, KEY).run();
            (ended.outcome, ended.moved, ended.ignored)
        };
        assert_eq!(run(), run());
    }
}
