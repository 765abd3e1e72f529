//! What the last message of a transfer has besides pages: the tokens that were drawn.

use policies::step::Drawn;

use super::Receiving;

impl Receiving {
    /// Whether there is a token to go on from; and, of what ran elsewhere, all that were computed.
    pub(super) fn fits(&self, tokens: u32, drawn: &[Drawn]) -> bool {
        let ahead = tokens.saturating_sub(self.wanted.tokens) as usize;
        !drawn.is_empty() && (self.takes.is_none() || drawn.len() == ahead + 1)
    }

    /// Whether the request is over with these tokens: by this end's limits, whatever the other one thinks.
    pub(super) fn ends(&self, drawn: &[Drawn]) -> bool {
        let spec = &self.spec;
        if self.takes.is_some() && drawn.len() > 1 {
            // It went on, so that none but the last can have ended it, and that would not be here.
            return false;
        }
        !drawn.is_empty()
            && drawn.iter().all(|d| {
                let ended = !spec.ignore_end && spec.end_tokens.contains(&d.token);
                let before = spec.resumed.get(d.seq.choice as usize).map_or(0, |c| c.tokens.len());
                ended || before + 1 >= spec.max_tokens as usize
            })
    }
}
