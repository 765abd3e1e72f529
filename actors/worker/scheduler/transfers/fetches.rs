//! Pages that are fetched ahead of a request: it runs elsewhere, and is to go on here in a moment.
//!
//! The scheduler's core has it as a request whose content comes from another worker, and drops it when that is here: the
//! pages that are full then lie in the prefix cache, where the request finds them when it comes.

use std::collections::BTreeMap;

use config::ids::{Attempt, NodeId, RequestId};
use policies::batch::Batch;
use policies::placement::KvPeer;
use policies::request::RequestSpec;
use policies::time::Time;

use super::{Entry, Id, Transfers};

/// Whom to tell what of which request.
pub(in crate::worker::scheduler) type Fetched = (NodeId, Id, Result<(), String>);

/// The fetches of one scheduler.
#[derive(Debug, Default)]
pub(super) struct Fetches {
    /// Under way, with whom to tell.
    open: BTreeMap<Id, NodeId>,
    /// Over, and not told.
    ended: Vec<Fetched>,
}

impl Fetches {
    pub(super) fn has(&self, id: Id) -> bool {
        self.open.contains_key(&id)
    }

    /// What was asked for is here, or will not come. Nothing where it is no fetch.
    pub(super) fn end(&mut self, id: Id, result: Result<(), String>) {
        if let Some(gateway) = self.open.remove(&id) {
            self.ended.push((gateway, id, result));
        }
    }
}

impl Transfers {
    /// Fetches the full pages of a sequence from the worker at `peer`.
    pub(in crate::worker::scheduler) fn fetch(
        &mut self,
        core: &mut Batch,
        now: Time,
        spec: RequestSpec,
        peer: Option<KvPeer>,
        gateway: NodeId,
    ) {
        let id = (spec.id, spec.attempt);
        let Some(peer) = peer.filter(|_| self.side.is_some()) else {
            let why = "the worker that it runs on exchanges no KV pages with this one".to_owned();
            self.fetches.ended.push((gateway, id, Err(why)));
            return;
        };
        let spec = whole_pages(spec, self.kv.layout.page_tokens);
        let kept = Box::new(spec.clone());
        // However little is missing: it is not to be computed here.
        let result = core.submit_received(now, spec, 1);
        if let Err(refusal) = result {
            self.fetches.ended.push((gateway, id, Err(refusal.to_string())));
        } else if !core.has(id.0, id.1) || !Batch::is_transferable(&kept) {
            core.cancel(now, id.0, id.1);
            self.fetches.ended.push((gateway, id, Err("the request is about to end".to_owned())));
        } else {
            self.fetches.open.insert(id, gateway);
            self.entries.insert(id, Entry::Waiting { spec: kept, peer, takes: None });
        }
    }

    /// Nobody waits for a fetch any more; its request is cancelled next.
    pub(in crate::worker::scheduler) fn call_off(&mut self, request: RequestId, attempt: Attempt) {
        self.fetches.open.remove(&(request, attempt));
    }

    /// A gateway is gone: gives back what was fetched for it, to be cancelled.
    pub(in crate::worker::scheduler) fn gateway_left(&mut self, gateway: &NodeId) -> Vec<Id> {
        let open = &mut self.fetches.open;
        let gone: Vec<Id> = open.iter().filter(|(_, of)| *of == gateway).map(|(id, _)| *id).collect();
        open.retain(|_, of| of != gateway);
        gone
    }

    /// Fetches that are over and not told.
    pub(in crate::worker::scheduler) fn take_fetched(&mut self) -> Vec<Fetched> {
        std::mem::take(&mut self.fetches.ended)
    }

    /// The first `tokens` tokens of what was fetched are here, and no more come.
    pub(super) fn end_fetch(
        &mut self,
        core: &mut Batch,
        now: Time,
        id: Id,
        tokens: u32,
        result: Result<(), String>,
    ) {
        self.entries.remove(&id);
        self.fetches.end(id, result);
        if !core.keep_received(now, id.0, id.1, tokens) {
            core.cancel(now, id.0, id.1);
        }
    }
}

/// The sequence up to its last full page and one token more, which the source has to compute anew to say what comes next:
/// with all tokens it would compute up to a page of them, in the middle of the stream that is to move. Where all its pages
/// are full that is the last page but one: what comes after a page is found by computing its last token, and computing
/// begins with a page. No client gets what is drawn, so that it does not matter which tokens are the prompt's; one stays
/// output, which tells the source that the stream goes on.
fn whole_pages(mut spec: RequestSpec, page_tokens: u32) -> RequestSpec {
    let (prompt, page) = (spec.prompt.len(), page_tokens.max(1) as usize);
    let [choice] = &mut spec.resumed[..] else { return spec };
    if choice.tokens.is_empty() {
        return spec;
    }
    let total = prompt + choice.tokens.len();
    let kept = ((total - 1) / page * page + 1).max(2);
    if kept > prompt {
        choice.tokens.truncate(kept - prompt);
    } else {
        choice.tokens = vec![spec.prompt[kept - 1]];
        spec.prompt = spec.prompt[..kept - 1].into();
        let pages = spec.hashes.len().min(spec.prompt.len() / page);
        spec.hashes = spec.hashes[..pages].into();
    }
    spec
}

#[cfg(test)]
mod tests {
    use policies::kv::PageHash;
    use policies::request::ResumedChoice;

    use super::*;

    /// Wherever in a page the stream is, before its first output fills one too.
    #[test]
    fn one_token_beyond_full_pages_is_computed_again() {
        for (prompt, generated) in
            (1..70).flat_map(|prompt| (1..70).map(move |generated| (prompt, generated)))
        {
            let mut spec = crate::testing::request(1, 100);
            spec.prompt = (0..prompt).collect();
            spec.hashes = (0..prompt / 16).map(|page| PageHash([page as u8; 16])).collect();
            let tokens = (prompt..prompt + generated).collect();
            spec.resumed = vec![ResumedChoice { tokens, ..ResumedChoice::default() }];
            let cut = whole_pages(spec.clone(), 16);
            let kept: Vec<u32> = cut.prompt.iter().chain(&cut.resumed[0].tokens).copied().collect();
            assert_eq!(
                kept,
                (0..kept.len() as u32).collect::<Vec<_>>(),
                "{prompt} + {generated}: a beginning"
            );
            // All pages before the last token, and that one; less than a page has no page.
            let pages = (prompt + generated - 1) / 16;
            assert_eq!(kept.len() as u32, (pages * 16 + 1).max(2), "{prompt} + {generated}");
            assert!(!cut.prompt.is_empty() && !cut.resumed[0].tokens.is_empty(), "{prompt} + {generated}");
            assert_eq!(cut.hashes.len(), cut.prompt.len() / 16);
            assert!(spec.hashes.starts_with(&cut.hashes));
        }
    }
}
