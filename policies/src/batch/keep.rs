//! Pages that stay pinned between the turns of a conversation.

use config::ids::PageId;

use super::Batch;
use super::slab::Key;
use crate::order::keep_session::{FINAL_PROP, KeepOptions, KeepSession, PROP, SessionKey};
use crate::request::{Prop, RequestSpec, prop_millis};
use crate::time::{Span, Time};

impl Batch {
    /// Keeps the pages of conversations from now on, within these limits, or no longer.
    pub fn keep_sessions(&mut self, limits: Option<KeepOptions>) {
        let gone = match (&mut self.kept, limits) {
            (Some(kept), Some(limits)) => kept.set_options(limits),
            (kept, Some(limits)) => {
                *kept = Some(KeepSession::new(limits, self.table.total()));
                Vec::new()
            }
            (kept, None) => {
                let mut former = kept.take();
                std::iter::from_fn(|| former.as_mut()?.release_oldest()).collect()
            }
        };
        self.let_go(gone);
    }

    /// Pages that are kept for conversations, and for how many of them.
    #[must_use]
    pub fn kept(&self) -> (u32, u32) {
        self.kept.as_ref().map_or((0, 0), |kept| (kept.pages(), kept.sessions()))
    }

    /// A choice ends for good: keeps the full pages of its sequence, if its request asks for that.
    pub(super) fn keep_turn(&mut self, request: Key, seq: Key) {
        let (Some(kept), Some(request), Some(seq)) =
            (&mut self.kept, self.requests.get(request), self.seqs.get(seq))
        else {
            return;
        };
        let spec = &request.spec;
        let Some(session) = session_of(spec) else { return };
        if spec.props.get(FINAL_PROP) == Some(&Prop::Bool(true)) {
            let gone = kept.release(&session);
            return self.let_go(gone.into_iter().collect());
        }
        let time = prop_millis(&spec.props, PROP).unwrap_or(Span::ZERO);
        if time == Span::ZERO {
            return;
        }
        let full: Vec<PageId> =
            seq.pages.iter().copied().take_while(|page| self.table.is_cached(*page)).collect();
        let (count, gone) = kept.keep(self.clock, session, &full, time);
        full[..count].iter().for_each(|page| self.table.hold(*page));
        self.let_go(gone);
    }

    /// Lets go of what was kept for long enough.
    pub(super) fn release_expired(&mut self, now: Time) {
        while let Some(pages) = self.kept.as_mut().and_then(|kept| kept.release_expired(now)) {
            self.give_up(pages);
        }
    }

    /// Others need room: the conversation that was kept longest gives way. False where none is kept.
    pub(super) fn release_oldest(&mut self) -> bool {
        let Some(pages) = self.kept.as_mut().and_then(KeepSession::release_oldest) else { return false };
        self.give_up(pages);
        true
    }

    fn let_go(&mut self, gone: Vec<Vec<PageId>>) {
        gone.into_iter().for_each(|pages| self.give_up(pages));
    }
}

fn session_of(spec: &RequestSpec) -> Option<SessionKey> {
    let session = spec.session.clone()?;
    Some(SessionKey { tenant: spec.tenant.clone(), session })
}
