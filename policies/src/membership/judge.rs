//! Whether a newcomer may come in: the part of the handshake that needs to know who is here.

use super::{Member, Membership, Row, Verdict};
use crate::time::{Span, Time};

/// Another process asked for the name of a linked member, which shows by its beats that it is alive, or does not.
#[derive(Clone, Debug)]
pub(super) struct Challenge {
    incarnation: u64,
    address: String,
    since: Time,
}

impl Membership {
    /// Whether an authenticated newcomer may be linked; both ends of a handshake ask. On [`Verdict::Wait`] the driver asks
    /// again at that time, in the same handshake; the second answer is another one.
    pub fn judge(&mut self, now: Time, newcomer: &Member) -> Verdict {
        self.enter(now);
        if newcomer.id == self.me.id {
            return if newcomer.incarnation == self.me.incarnation {
                Verdict::Itself
            } else {
                Verdict::NameInUse { address: self.me.address.clone() }
            };
        }
        let Some(row) = self.rows.get(&newcomer.id).filter(|row| row.loss.is_none()) else {
            return Verdict::Accept;
        };
        if row.member.incarnation == newcomer.incarnation {
            // Silent for two heartbeats: a half-open connection, left over from a cut that only the other end noticed.
            return if self.is_quiet(now, row) { Verdict::Accept } else { Verdict::AlreadyLinked };
        }
        let taken = Verdict::NameInUse { address: row.member.address.clone() };
        if newcomer.incarnation < row.member.incarnation {
            return taken;
        }
        // A port is bound once: whoever had this address before is dead.
        if newcomer.address == row.member.address {
            return Verdict::Accept;
        }
        self.probe(now, newcomer, taken)
    }

    /// Waits for a beat of the holder of the name. One that was on its way when the question came does not count, or a
    /// frozen holder would keep the name: hence the half heartbeat.
    fn probe(&mut self, now: Time, newcomer: &Member, taken: Verdict) -> Verdict {
        let half = Span(self.config.heartbeat.0 / 2);
        let wait = self.two_beats() + half;
        let Some(row) = self.rows.get_mut(&newcomer.id) else { return Verdict::Accept };
        let since = row.challenged(now, newcomer, wait);
        let alive = row.heard > since + half;
        match (alive, now >= since + wait) {
            (false, false) => Verdict::Wait { until: since + wait },
            (false, true) => Verdict::Accept,
            (true, _) => {
                // The next one who asks is judged anew.
                row.challenge = None;
                taken
            }
        }
    }
}

impl Row {
    /// Since when this newcomer asks: now, unless it did lately.
    fn challenged(&mut self, now: Time, newcomer: &Member, wait: Span) -> Time {
        let same = |c: &&Challenge| {
            c.incarnation == newcomer.incarnation
                && c.address == newcomer.address
                && now <= c.since + wait + wait
        };
        if let Some(challenge) = self.challenge.as_ref().filter(same) {
            return challenge.since;
        }
        let (incarnation, address) = (newcomer.incarnation, newcomer.address.clone());
        self.challenge = Some(Challenge { incarnation, address, since: now });
        now
    }
}
