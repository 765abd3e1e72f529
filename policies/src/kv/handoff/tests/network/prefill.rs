//! The prefill worker's side: a scheduler that computes, an engine that exports, and pages that have one owner.

use super::*;

pub(super) struct PrefillEnd {
    machine: Option<Sender>,
    /// What the sequence's pages hold.
    memory: Vec<u64>,
    /// Tokens computed, and how many it will compute.
    computed: u32,
    tokens: u32,
    exporting: Option<Piece>,
    /// What was exported and is not with the link.
    exported: BTreeMap<u32, u64>,
    exports: u32,
    /// Messages that the link is writing.
    writing: u32,
    released: u32,
    report: Option<TransferReport>,
    died: bool,
    heard: Time,
    ended: Option<Time>,
    ignored: u32,
    /// Pages sent may not go beyond this.
    allowed: u32,
    /// The receiver has pages.
    open: bool,
    case: Case,
}

impl PrefillEnd {
    pub(super) fn new(case: &Case) -> Self {
        let tokens = case.tokens + u32::from(case.faults.wrong_tokens);
        Self {
            machine: None,
            memory: (0..tokens.div_ceil(case.page)).map(content).collect(),
            computed: 0,
            tokens,
            exporting: None,
            exported: BTreeMap::new(),
            exports: 0,
            writing: 0,
            released: 0,
            report: None,
            died: false,
            heard: ms(0),
            ended: None,
            ignored: 0,
            allowed: 0,
            open: false,
            case: case.clone(),
        }
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.machine.as_ref().and_then(Sender::next_deadline)
    }

    pub(super) fn tick(&mut self, net: &mut Net) {
        self.with(net, |m, now, fx| m.tick(now, fx));
    }

    pub(super) fn hear(&mut self, net: &mut Net, key: TransferKey, message: ToPrefill) {
        match message {
            // A question of a transfer that is not here makes one; those of others are not this one's.
            ToPrefill::Ask(_) if self.died || self.case.faults.silent || key != net.key => {}
            ToPrefill::Ask(asked) => {
                if self.machine.is_none() {
                    self.machine = Some(Sender::new(self.case.config, key, asked));
                    self.allowed = asked.first_page + asked.window;
                    self.open = asked.reserved;
                    self.heard = net.now;
                }
                self.with(net, |m, now, fx| m.asked(now, fx));
            }
            ToPrefill::Event(event) => {
                match event {
                    SenderEvent::Credit { pages } if key == net.key => self.allowed += pages,
                    SenderEvent::Opened { first_page, window } if key == net.key && !self.open => {
                        (self.open, self.allowed) = (true, first_page + window);
                    }
                    _ => {}
                }
                self.on(net, key, event);
            }
        }
    }

    pub(super) fn submitted(&mut self, net: &mut Net) {
        if self.case.faults.refuses {
            return self.on(net, net.key, SenderEvent::RefusedLocally(RefusalCode::QueueFull));
        }
        self.on(net, net.key, SenderEvent::Submitted);
        if !self.open {
            self.on(net, net.key, SenderEvent::Begun);
        }
        let span = net.some_time();
        net.after(span, Happening::Step);
    }

    /// A step is done; the scheduler goes on until the sequence is released.
    pub(super) fn step(&mut self, net: &mut Net) {
        if self.died || self.computed == self.tokens {
            return;
        }
        self.computed = (self.computed + self.case.chunk).min(self.tokens);
        let event = match self.computed == self.tokens {
            false => SenderEvent::Computed { pages: self.computed / self.case.page },
            true => SenderEvent::Prefilled { tokens: self.tokens, ends: self.case.ends },
        };
        self.on(net, net.key, event);
        let span = net.some_time();
        net.after(span, Happening::Step);
    }

    pub(super) fn exported(&mut self, net: &mut Net, piece: Piece) {
        if self.died {
            return;
        }
        assert_eq!(self.exporting.take(), Some(piece));
        assert_eq!(self.released, 0, "an export reads pages of somebody else");
        let Piece { first, count } = piece;
        self.exports += 1;
        if self.case.faults.export_fails == Some(self.exports - 1) {
            return self.on(net, net.key, SenderEvent::ExportFailed { first, count });
        }
        for page in first..piece.end() {
            self.exported.insert(page, self.memory[page as usize]);
        }
        self.on(net, net.key, SenderEvent::Exported { first, count });
    }

    pub(super) fn written(&mut self, net: &mut Net, piece: Piece) {
        self.writing = self.writing.saturating_sub(1);
        self.on(net, net.key, SenderEvent::Sent { first: piece.first, count: piece.count });
    }

    pub(super) fn cancel(&mut self, net: &mut Net) {
        self.with(net, |m, _, fx| m.cancel(fx));
    }

    /// The engine fails.
    pub(super) fn breaks(&mut self, net: &mut Net) {
        self.on(net, net.key, SenderEvent::RefusedLocally(RefusalCode::Failed));
    }

    pub(super) fn link_lost(&mut self, net: &mut Net) {
        self.with(net, |m, _, fx| m.link_lost(fx));
    }

    /// The process ends, and its pages with it; the next one knows nothing of the transfer.
    pub(super) fn die(&mut self) {
        self.died = true;
        self.machine = None;
    }

    pub(super) fn ignored(&self) -> u32 {
        self.ignored
    }

    pub(super) fn report(&self) -> Option<TransferReport> {
        self.report
    }

    pub(super) fn verify(&self, lease: Span) {
        if self.died || self.machine.is_none() {
            return;
        }
        let ended = self.ended.expect("it waits for ever");
        assert!(ended <= self.heard + lease, "it ended at {ended:?}, heard the last at {:?}", self.heard);
        assert_eq!(self.released, 1);
        assert!(self.report.is_some() && self.exporting.is_none());
    }

    fn on(&mut self, net: &mut Net, key: TransferKey, event: SenderEvent) {
        let before = self.machine.as_ref().map_or(0, Sender::ignored);
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

    fn with(&mut self, net: &mut Net, act: impl FnOnce(&mut Sender, Time, &mut Vec<SenderEffect>)) {
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

    fn carry_out(&mut self, net: &mut Net, effect: SenderEffect) {
        let event = match effect {
            SenderEffect::Submit => {
                let span = net.some_time();
                return net.after(span, Happening::Submitted);
            }
            SenderEffect::Accept => ReceiverEvent::Accepted,
            SenderEffect::Announce => ReceiverEvent::Begun,
            SenderEffect::Open { .. } => return assert!(self.open, "nobody has said so"),
            SenderEffect::Refuse(code) => ReceiverEvent::Refused(code),
            SenderEffect::CancelPeer(_) => ReceiverEvent::PeerCancelled,
            SenderEffect::Export { first, count } => return self.export(net, Piece { first, count }),
            SenderEffect::SendPages { first, count } => {
                let piece = Piece { first, count };
                let bytes = u64::from(count) * 1000;
                return self.send(net, piece, ReceiverEvent::Pages { first, count, bytes });
            }
            SenderEffect::SendLast { first, count, tokens } => {
                assert_eq!(tokens, self.computed);
                let (bytes, ends) = (u64::from(count) * 1000, self.case.ends);
                let last = ReceiverEvent::Last { tokens, first, count, bytes, drawn: true, ends };
                return self.send(net, Piece { first, count }, last);
            }
            SenderEffect::Release => {
                assert_eq!(self.exporting, None, "released while an export reads it");
                self.released += 1;
                assert_eq!(self.released, 1);
                // The next owner writes at once.
                self.memory.fill(FOREIGN);
                return;
            }
            SenderEffect::Done(report) => {
                assert_eq!(self.released, 1);
                self.report = Some(report);
                self.ended = Some(net.now);
                return;
            }
        };
        net.send(1, Happening::AtDecode(net.key, ToDecode::Event(event)));
    }

    fn export(&mut self, net: &mut Net, piece: Piece) {
        assert_eq!(self.exporting, None, "one at a time");
        assert!(self.open, "there are no pages to send to");
        let full = self.computed / self.case.page;
        let there = if self.computed == self.tokens { self.tokens.div_ceil(self.case.page) } else { full };
        assert!(piece.end() <= there, "{piece:?} of {there} pages computed");
        assert!(piece.first >= self.case.cached && piece.count <= self.case.config.pages_per_message);
        assert!(self.case.want_pages && (!self.case.ends || self.computed < self.tokens), "nobody wants it");
        self.exporting = Some(piece);
        let span = net.some_time();
        net.after(span, Happening::Exported(piece));
    }

    fn send(&mut self, net: &mut Net, piece: Piece, event: ReceiverEvent) {
        assert_eq!(self.writing, 0, "one message at a time");
        self.writing += 1;
        assert!(
            piece.count == 0 || piece.end() <= self.allowed,
            "{piece:?} with credit up to {}",
            self.allowed
        );
        let body = |page| self.exported.remove(&page).expect("it was exported");
        let bodies: Vec<u64> = (piece.first..piece.end()).map(body).collect();
        net.send(1, Happening::AtDecode(net.key, ToDecode::Pages(event, bodies)));
        let span = net.some_time();
        net.after(span, Happening::Written(piece));
    }
}
