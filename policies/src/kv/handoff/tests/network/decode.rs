//! The decode worker's side: reserved pages, an engine that imports, and what must not happen to them.

use super::*;

pub(super) struct DecodeEnd {
    machine: Option<Receiver>,
    /// It has pages, or its scheduler has been asked for them.
    reserved: bool,
    asked_for_pages: bool,
    /// What the reserved pages hold; none: nothing was written.
    memory: Vec<Option<u64>>,
    /// Imports in flight with what they will write, and pages that they hold back.
    flying: BTreeMap<u32, Vec<u64>>,
    /// The pages that just came.
    arrived: (u32, Vec<u64>),
    imports: u32,
    messages: u32,
    last: Vec<ReceiverEffect>,
    acked: u32,
    report: Option<TransferReport>,
    died: bool,
    /// The last event that was not a tick, and the end.
    heard: Time,
    ended: Option<Time>,
    ignored: u32,
    case: Case,
}

impl DecodeEnd {
    pub(super) fn new(case: &Case, key: TransferKey) -> Self {
        let wanted = Wanted {
            tokens: case.tokens,
            page_tokens: case.page,
            cached_pages: case.cached,
            pages: case.want_pages,
            held: false,
        };
        let pages = case.tokens.div_ceil(case.page);
        let begin = if case.late { Receiver::unreserved } else { Receiver::new };
        Self {
            machine: Some(begin(case.config, key, wanted)),
            reserved: !case.late,
            asked_for_pages: false,
            memory: (0..pages).map(|page| (page < case.cached).then(|| content(page))).collect(),
            flying: BTreeMap::new(),
            arrived: (0, Vec::new()),
            imports: 0,
            messages: 0,
            last: Vec::new(),
            acked: 0,
            report: None,
            died: false,
            heard: ms(0),
            ended: None,
            ignored: 0,
            case: case.clone(),
        }
    }

    pub(super) fn start(&mut self, net: &mut Net) {
        self.with(net, |m, now, fx| m.start(now, fx));
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.machine.as_ref().and_then(Receiver::next_deadline)
    }

    pub(super) fn tick(&mut self, net: &mut Net) {
        self.with(net, |m, now, fx| m.tick(now, fx));
    }

    pub(super) fn hear(&mut self, net: &mut Net, key: TransferKey, message: ToDecode) {
        let event = match message {
            ToDecode::Event(event) => event,
            ToDecode::Pages(event, bodies) => {
                let (ReceiverEvent::Pages { first, .. } | ReceiverEvent::Last { first, .. }) = event else {
                    panic!("{event:?} has no pages");
                };
                self.messages += 1;
                let corrupt = !bodies.is_empty() && self.case.faults.corrupt == Some(self.messages - 1);
                self.arrived = (first, bodies);
                if corrupt { ReceiverEvent::BadChecksum { first } } else { event }
            }
        };
        self.on(net, key, event);
    }

    pub(super) fn reserved(&mut self, net: &mut Net) {
        if self.ended.is_none() && !self.died {
            self.reserved = true;
        }
        self.on(net, net.key, ReceiverEvent::Reserved { cached_pages: self.case.cached });
    }

    pub(super) fn imported(&mut self, net: &mut Net, piece: Piece) {
        if self.died {
            return;
        }
        assert!(self.ended.is_none(), "an import writes to pages of somebody else");
        let bodies = self.flying.remove(&piece.first).expect("it is in flight");
        let Piece { first, count } = piece;
        self.imports += 1;
        let fails = self.case.faults.import_fails == Some(self.imports - 1);
        for (page, body) in (first..).zip(bodies) {
            assert!(page >= self.case.cached, "a cached page is written");
            let before = self.memory[page as usize].replace(if fails { FOREIGN } else { body });
            assert_eq!(before, None, "page {page} is written twice");
        }
        let event = match fails {
            false => ReceiverEvent::Imported { first, count },
            true => ReceiverEvent::ImportFailed { first, count },
        };
        self.on(net, net.key, event);
    }

    pub(super) fn cancel(&mut self, net: &mut Net) {
        self.heard = if self.ended.is_none() { net.now } else { self.heard };
        self.with(net, |m, now, fx| m.cancel(now, fx));
    }

    pub(super) fn link_lost(&mut self, net: &mut Net) {
        self.with(net, |m, now, fx| m.link_lost(now, fx));
    }

    /// The process ends, and its pages with it.
    pub(super) fn die(&mut self) {
        if self.ended.is_none() {
            self.died = true;
            self.machine = None;
        }
    }

    pub(super) fn ignored(&self) -> u32 {
        self.ignored
    }

    pub(super) fn report(&self) -> Option<TransferReport> {
        self.report
    }

    pub(super) fn verify(&self, lease: Span) {
        if self.died {
            return;
        }
        let ended = self.ended.expect("it waits for ever");
        assert!(ended <= self.heard + lease, "it ended at {ended:?}, heard the last at {:?}", self.heard);
        assert_eq!(self.last.len(), 1, "one end: {:?}", self.last);
        assert!(self.flying.is_empty());
        let report = self.report.expect("it was reported");
        let committed = matches!(self.last[..], [ReceiverEffect::Commit { .. }]);
        assert_eq!(committed, report.outcome == Outcome::Committed);
        assert!(self.acked <= u32::from(committed));
    }

    fn on(&mut self, net: &mut Net, key: TransferKey, event: ReceiverEvent) {
        let before = self.machine.as_ref().map_or(0, Receiver::ignored);
        let open = self.ended.is_none();
        self.with(net, |m, now, fx| m.on(now, key, event, fx));
        if open && self.machine.as_ref().is_some_and(|m| m.ignored() == before) {
            self.heard = net.now;
        }
        assert!(
            key == net.key || self.machine.as_ref().is_none_or(|m| m.ignored() == before + 1),
            "taken for ours: {event:?}"
        );
    }

    fn with(&mut self, net: &mut Net, act: impl FnOnce(&mut Receiver, Time, &mut Vec<ReceiverEffect>)) {
        // Meanwhile it waits for its own scheduler, not for its peer.
        if self.asked_for_pages && !self.reserved && self.ended.is_none() {
            self.heard = net.now;
        }
        let Some(machine) = &mut self.machine else { return };
        let mut fx = Vec::new();
        act(machine, net.now, &mut fx);
        enforce(machine.check());
        self.ignored = machine.ignored();
        for effect in fx {
            assert!(self.report.is_none(), "{effect:?} after the end");
            self.carry_out(net, effect);
        }
    }

    fn carry_out(&mut self, net: &mut Net, effect: ReceiverEffect) {
        let event = match effect {
            ReceiverEffect::Ask { first_page, want_pages, window, reserved } => {
                let page_tokens = self.case.page;
                let asked = Asked { first_page, want_pages, window, page_tokens, page_bytes: 1000, reserved };
                return net.send(0, Happening::AtPrefill(net.key, ToPrefill::Ask(asked)));
            }
            ReceiverEffect::Import { first, count } => return self.import(net, Piece { first, count }),
            ReceiverEffect::Reserve => {
                self.asked_for_pages = true;
                let span = net.some_time();
                return net.after(span, Happening::Reserved);
            }
            ReceiverEffect::Open { first_page, window } => SenderEvent::Opened { first_page, window },
            ReceiverEffect::GrantCredit(pages) => SenderEvent::Credit { pages },
            ReceiverEffect::Ack => {
                self.acked += 1;
                SenderEvent::Ack
            }
            ReceiverEffect::CancelPeer(_) => SenderEvent::PeerCancelled,
            ReceiverEffect::Commit { .. } | ReceiverEffect::Fallback { .. } | ReceiverEffect::Free => {
                return self.last_effect(effect);
            }
            ReceiverEffect::Done(report) => {
                self.report = Some(report);
                self.ended = Some(net.now);
                return;
            }
        };
        net.send(0, Happening::AtPrefill(net.key, ToPrefill::Event(event)));
    }

    fn import(&mut self, net: &mut Net, piece: Piece) {
        assert!(self.reserved, "there are no pages to write to");
        let (first, bodies) = std::mem::take(&mut self.arrived);
        assert_eq!((first, bodies.len()), (piece.first, piece.count as usize), "it imports what came");
        self.flying.insert(first, bodies);
        let pages: usize = self.flying.values().map(Vec::len).sum();
        assert!(pages <= self.case.config.window_pages as usize, "{pages} pages wait");
        let span = net.some_time();
        net.after(span, Happening::Imported(piece));
    }

    /// The pages are given to somebody: to the scheduler with what they hold, or to the pool.
    fn last_effect(&mut self, effect: ReceiverEffect) {
        assert!(self.flying.is_empty(), "{effect:?} while an import is in flight");
        let valid = match effect {
            ReceiverEffect::Commit { tokens, pages, ends } => {
                assert_eq!((tokens, ends), (self.case.tokens, self.case.ends));
                assert!(!self.case.faults.wrong_tokens, "it computed other tokens");
                assert!(ends || pages == self.case.all_pages(), "{pages} pages are not enough");
                pages
            }
            ReceiverEffect::Fallback { valid_pages, .. } => {
                let least = if self.reserved { self.case.cached } else { 0 };
                assert!((least..=self.case.tokens / self.case.page).contains(&valid_pages));
                valid_pages
            }
            _ => 0,
        };
        for page in 0..valid {
            assert_eq!(self.memory[page as usize], Some(content(page)), "page {page} of {effect:?}");
        }
        self.last.push(effect);
    }
}
