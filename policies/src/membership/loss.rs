//! Links that come and go, and what that says about their members.

use config::ids::NodeId;

use super::{LinkId, Loss, Member, MemberState, Membership, MembershipEffect, Row};
use crate::time::{Span, Time};

impl Membership {
    /// Whose link this is.
    pub(super) fn owner(&self, link: LinkId) -> Option<NodeId> {
        self.rows.iter().find(|(_, row)| row.links.contains_key(&link)).map(|(id, _)| id.clone())
    }

    /// Takes a link off its member.
    pub(super) fn drop_link(&mut self, link: LinkId) -> Option<NodeId> {
        let id = self.owner(link)?;
        self.rows.get_mut(&id)?.links.remove(&link);
        Some(id)
    }

    /// A link of the life that is up, or of one that is up from now on.
    pub(super) fn add_link(
        &mut self,
        now: Time,
        link: LinkId,
        member: Member,
        fx: &mut Vec<MembershipEffect>,
    ) {
        self.connected = true;
        self.was_joined = true;
        let row = self.rows.entry(member.id.clone()).or_insert_with(|| Row::new(now, member.clone()));
        let up = row.links.is_empty();
        row.links.insert(link, now);
        row.heard = now;
        row.loss = None;
        row.challenge = None;
        if up {
            row.since = now;
            row.member = member.clone();
            fx.push(MembershipEffect::Up(member));
        }
    }

    /// A beat of the link's own member.
    pub(super) fn heard(&mut self, now: Time, link: LinkId, member: Member, fx: &mut Vec<MembershipEffect>) {
        let Some(row) = self.rows.get_mut(&member.id) else { return };
        if member.incarnation < row.member.incarnation {
            return;
        }
        row.heard = now;
        row.links.insert(link, now);
        if member.incarnation > row.member.incarnation {
            // It was alone for a moment and took a new life, while this link was being made in its former one.
            row.links.remove(&link);
            let id = member.id.clone();
            self.lose(now, &id, Loss::Replaced, fx);
            self.add_link(now, link, member, fx);
        } else if member != row.member {
            row.member = member.clone();
            fx.push(MembershipEffect::Changed { member, state: row.state() });
        }
    }

    /// This life of a member is over: its links are closed, and it is dialled where that makes sense.
    pub(super) fn lose(&mut self, now: Time, id: &NodeId, why: Loss, fx: &mut Vec<MembershipEffect>) {
        let Some(row) = self.rows.get_mut(id).filter(|row| row.loss.is_none()) else { return };
        for link in std::mem::take(&mut row.links).into_keys() {
            fx.push(MembershipEffect::Close { link, why: why.as_str() });
        }
        row.loss = Some(why);
        row.since = now;
        row.challenge = None;
        let (id, incarnation) = (row.member.id.clone(), row.member.incarnation);
        let address = row.member.address.clone();
        fx.push(MembershipEffect::Down { id: id.clone(), incarnation, why });
        match why {
            Loss::Goodbye => self.dial_rarely(now, &id, &address),
            Loss::Closed | Loss::Silent | Loss::Replaced => self.dial_soon(now, &id, address),
        }
    }

    /// After a link is gone: lost, unless there is another.
    pub(super) fn lose_if_unlinked(&mut self, now: Time, id: &NodeId, fx: &mut Vec<MembershipEffect>) {
        let Some(row) = self.rows.get(id).filter(|row| row.links.is_empty()) else { return };
        // A link may have been under way when it said goodbye.
        let left = row.goodbye == Some(row.member.incarnation);
        self.lose(now, id, if left { Loss::Goodbye } else { Loss::Closed }, fx);
    }

    /// When a link that was heard then is too silent.
    pub(super) fn silent_at(&self, heard: Time) -> Time {
        let limit = Span(self.config.suspect_after.0 / 10 * 9);
        (heard + limit).max(self.grace)
    }

    /// Closes silent links. Where another link of the member still speaks, only the silent one goes.
    pub(super) fn lose_silent(&mut self, now: Time, fx: &mut Vec<MembershipEffect>) {
        let live: Vec<NodeId> =
            self.rows.iter().filter(|(_, r)| r.loss.is_none()).map(|(id, _)| id.clone()).collect();
        for id in live {
            let Some(row) = self.rows.get(&id) else { continue };
            let silent: Vec<LinkId> = row
                .links
                .iter()
                .filter(|(_, heard)| self.silent_at(**heard) <= now)
                .map(|(l, _)| *l)
                .collect();
            if silent.len() == row.links.len() {
                self.lose(now, &id, Loss::Silent, fx);
            } else {
                for link in silent {
                    self.drop_link(link);
                    fx.push(MembershipEffect::Close { link, why: Loss::Silent.as_str() });
                }
            }
        }
    }

    /// Drops those that are lost for long, and addresses that nobody wants.
    pub(super) fn forget(&mut self, now: Time, fx: &mut Vec<MembershipEffect>) {
        let age = self.config.forget_after;
        self.rows.retain(|_, row| {
            let keep = row.loss.is_none() || now < row.since + age;
            if !keep && row.state() == MemberState::Suspect {
                fx.push(MembershipEffect::Changed { member: row.member.clone(), state: MemberState::Left });
            }
            keep
        });
        self.prune_targets(now);
    }
}
