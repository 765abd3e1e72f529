use super::*;
use crate::invariant::{enforce, panic_on_broken};

mod chunking;
mod held;
mod late;
mod network;
mod scenarios;

const KEY: TransferKey = TransferKey { transfer: 7, generation: 3 };
const PAGE: u32 = 16;

fn ms(n: u64) -> Time {
    Time::ZERO + Span::from_millis(n)
}

fn config(window: u32, message: u32) -> HandoffConfig {
    HandoffConfig { window_pages: window, pages_per_message: message, ..HandoffConfig::default() }
}

/// A receiver that has asked for `tokens` tokens and holds `cached` pages.
struct Decode {
    machine: Receiver,
    now: Time,
}

impl Decode {
    fn new(tokens: u32, cached: u32, config: HandoffConfig) -> Self {
        Self::wanting(
            Wanted { tokens, page_tokens: PAGE, cached_pages: cached, pages: true, held: false },
            config,
        )
    }

    fn wanting(wanted: Wanted, config: HandoffConfig) -> Self {
        panic_on_broken();
        let mut machine = Receiver::new(config, KEY, wanted);
        let mut fx = Vec::new();
        machine.start(ms(0), &mut fx);
        assert!(matches!(fx[..], [ReceiverEffect::Ask { .. }]), "{fx:?}");
        Self { machine, now: ms(0) }
    }

    /// One that has asked, and gets its pages when the sender begins.
    fn unreserved(tokens: u32, config: HandoffConfig) -> Self {
        panic_on_broken();
        let wanted = Wanted { tokens, page_tokens: PAGE, cached_pages: 0, pages: true, held: false };
        let mut machine = Receiver::unreserved(config, KEY, wanted);
        let mut fx = Vec::new();
        machine.start(ms(0), &mut fx);
        let asks = ReceiverEffect::Ask { first_page: 0, want_pages: true, window: 0, reserved: false };
        assert_eq!(fx, [asks]);
        Self { machine, now: ms(0) }
    }

    fn on(&mut self, event: ReceiverEvent) -> Vec<ReceiverEffect> {
        self.keyed(KEY, event)
    }

    fn keyed(&mut self, key: TransferKey, event: ReceiverEvent) -> Vec<ReceiverEffect> {
        self.does(|m, now, fx| m.on(now, key, event, fx))
    }

    fn does(
        &mut self,
        act: impl FnOnce(&mut Receiver, Time, &mut Vec<ReceiverEffect>),
    ) -> Vec<ReceiverEffect> {
        self.now = self.now + Span::from_millis(1);
        let mut fx = Vec::new();
        act(&mut self.machine, self.now, &mut fx);
        enforce(self.machine.check());
        fx
    }

    /// The event changes nothing, and is counted.
    fn ignores(&mut self, key: TransferKey, event: ReceiverEvent) {
        let before = self.machine.ignored();
        assert_eq!(self.keyed(key, event), [], "{event:?}");
        assert_eq!(self.machine.ignored(), before + 1, "{event:?}");
    }
}

/// A sender that was asked.
struct Prefill {
    machine: Sender,
    now: Time,
}

impl Prefill {
    fn new(first_page: u32, window: u32, config: HandoffConfig) -> Self {
        Self::asked(Asked { first_page, window, ..asked() }, config)
    }

    fn asked(asked: Asked, config: HandoffConfig) -> Self {
        panic_on_broken();
        let mut prefill = Self { machine: Sender::new(config, KEY, asked), now: ms(0) };
        assert_eq!(prefill.does(|m, now, fx| m.asked(now, fx)), [SenderEffect::Submit]);
        assert_eq!(prefill.on(SenderEvent::Submitted), [SenderEffect::Accept]);
        prefill
    }

    fn on(&mut self, event: SenderEvent) -> Vec<SenderEffect> {
        self.does(|m, now, fx| m.on(now, KEY, event, fx))
    }

    fn does(&mut self, act: impl FnOnce(&mut Sender, Time, &mut Vec<SenderEffect>)) -> Vec<SenderEffect> {
        self.now = self.now + Span::from_millis(1);
        let mut fx = Vec::new();
        act(&mut self.machine, self.now, &mut fx);
        enforce(self.machine.check());
        fx
    }

    fn ignores(&mut self, key: TransferKey, event: SenderEvent) {
        let before = self.machine.ignored();
        assert_eq!(self.does(|m, now, fx| m.on(now, key, event, fx)), [], "{event:?}");
        assert_eq!(self.machine.ignored(), before + 1, "{event:?}");
    }
}

fn asked() -> Asked {
    Asked { first_page: 0, want_pages: true, window: 64, page_tokens: PAGE, page_bytes: 1000, reserved: true }
}

fn pages(first: u32, count: u32) -> ReceiverEvent {
    ReceiverEvent::Pages { first, count, bytes: u64::from(count) * 1000 }
}

fn last(tokens: u32, first: u32, count: u32) -> ReceiverEvent {
    ReceiverEvent::Last { tokens, first, count, bytes: u64::from(count) * 1000, drawn: true, ends: false }
}

fn imported(first: u32, count: u32) -> ReceiverEvent {
    ReceiverEvent::Imported { first, count }
}
