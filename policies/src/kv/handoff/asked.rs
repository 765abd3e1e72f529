//! What is asked of another worker about a request, and what its last message means for the request.

use config::ids::Attempt;

use super::Wanted;
use crate::request::RequestSpec;
use crate::step::Drawn;

/// Fewer tokens than this many pages hold are computed where they are needed: that takes less than asking.
pub const LEAST_PAGES: u32 = 2;

impl Wanted {
    /// What is wanted of `spec`, which is asked for as `attempt`: `tokens` tokens of it, of which the first `cached` are here.
    #[must_use]
    pub fn of(spec: &RequestSpec, attempt: Attempt, tokens: u32, cached: u32, page_tokens: u32) -> Self {
        // Or it is not the request that is asked for, but its start.
        let held = attempt.fetched_for().is_some();
        // What ends with its first token in any case needs no pages.
        let done = spec.resumed.iter().map(|choice| choice.tokens.len()).max().unwrap_or(0);
        Self {
            tokens,
            page_tokens,
            cached_pages: cached / page_tokens.max(1),
            pages: held || spec.max_tokens as usize > done + 1,
            held,
        }
    }

    /// Whether there is a token to go on from among those that were `drawn` when the sender had computed `tokens`; and, of what
    /// `ran` there, all of them.
    #[must_use]
    pub fn fits(&self, ran: bool, tokens: u32, drawn: &[Drawn]) -> bool {
        let ahead = tokens.saturating_sub(self.tokens) as usize;
        !drawn.is_empty() && (!ran || drawn.len() == ahead + 1)
    }
}

impl RequestSpec {
    /// Whether the request is over with the tokens that another worker has `drawn` for it: by its own limits, whatever that
    /// one thinks. `ran`: it generated there already.
    #[must_use]
    pub fn ends_with(&self, ran: bool, drawn: &[Drawn]) -> bool {
        if ran && drawn.len() > 1 {
            // It went on, so that none but the last can have ended it, and that would not be here.
            return false;
        }
        !drawn.is_empty()
            && drawn.iter().all(|d| {
                let ended = !self.ignore_end && self.end_tokens.contains(&d.token);
                let before = self.resumed.get(d.seq.choice as usize).map_or(0, |c| c.tokens.len());
                ended || before + 1 >= self.max_tokens as usize
            })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use config::ids::RequestId;

    use super::*;
    use crate::request::ResumedChoice;
    use crate::step::SeqKey;

    const PAGE: u32 = 16;

    fn spec(max_tokens: u32, done: usize) -> RequestSpec {
        let resumed = vec![ResumedChoice { tokens: vec![5; done], ..ResumedChoice::default() }];
        let end_tokens = Arc::from([7]);
        RequestSpec {
            resumed,
            end_tokens,
            ..RequestSpec::plain(RequestId::new(1, 1), "m".into(), vec![1; 40], max_tokens)
        }
    }

    fn drawn(tokens: &[u32]) -> Vec<Drawn> {
        let seq = SeqKey { request: RequestId::new(1, 1), attempt: Attempt(0), choice: 0 };
        tokens.iter().map(|&token| Drawn { seq, token, logprobs: None }).collect()
    }

    #[test]
    fn pages_are_wanted_where_more_than_a_token_is_left_or_they_are_all_that_is_asked_for() {
        let wanted = |spec: &RequestSpec, attempt: Attempt| {
            let wanted = Wanted::of(spec, attempt, 40, 33, PAGE);
            assert_eq!((wanted.tokens, wanted.cached_pages, wanted.page_tokens), (40, 2, PAGE));
            (wanted.pages, wanted.held)
        };
        assert_eq!(wanted(&spec(2, 0), Attempt(0)), (true, false));
        assert_eq!(wanted(&spec(1, 0), Attempt(0)), (false, false));
        assert_eq!(wanted(&spec(5, 4), Attempt(3)), (false, false));
        assert_eq!(wanted(&spec(1, 0), Attempt(0).fetch()), (true, true));
    }

    #[test]
    fn a_prompt_needs_its_first_token_and_what_ran_all_that_came_of_it() {
        let wanted = Wanted::of(&spec(9, 0), Attempt(0), 40, 0, PAGE);
        for (ran, tokens, came, fits) in [
            (false, 40, &[1][..], true),
            (false, 40, &[], false),
            (true, 40, &[1], true),
            (true, 42, &[1, 2, 3], true),
            (true, 42, &[1, 2], false),
            (true, 40, &[1, 2], false),
        ] {
            assert_eq!(wanted.fits(ran, tokens, &drawn(came)), fits, "{ran} {tokens} {came:?}");
        }
    }

    #[test]
    fn a_request_ends_by_its_own_limit_or_an_end_token_and_not_in_the_middle_of_what_ran() {
        assert!(spec(1, 0).ends_with(false, &drawn(&[3])));
        assert!(!spec(2, 0).ends_with(false, &drawn(&[3])));
        assert!(spec(2, 0).ends_with(false, &drawn(&[7])));
        assert!(spec(3, 2).ends_with(true, &drawn(&[3])));
        assert!(!spec(3, 0).ends_with(true, &drawn(&[3, 7])), "it went on");
        assert!(!spec(1, 0).ends_with(false, &[]));
        let open = RequestSpec { ignore_end: true, ..spec(2, 0) };
        assert!(!open.ends_with(false, &drawn(&[7])));
    }
}
