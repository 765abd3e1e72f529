//! What others ask of the membership, and its invariants.

use std::collections::BTreeSet;

use config::Role;
use config::ids::NodeId;

use super::{LinkId, MemberState, MemberView, Membership, Peer, Row};
use crate::ensure_invariant;
use crate::invariant::Broken;
use crate::time::Time;

impl Membership {
    /// This node first, then the others by name; lost ones are shown until they are forgotten.
    #[must_use]
    pub fn members(&self) -> Vec<MemberView> {
        let me = MemberView {
            member: self.me.clone(),
            state: if self.me.ready { MemberState::Ready } else { MemberState::Joined },
            itself: true,
            link: None,
            heard: self.last,
            since: Time::ZERO,
        };
        let other = |row: &Row| MemberView {
            member: row.member.clone(),
            state: row.state(),
            itself: false,
            link: self.preferred(row),
            heard: row.heard,
            since: row.since,
        };
        std::iter::once(me).chain(self.rows.values().map(other)).collect()
    }

    /// Linked members, to gossip.
    #[must_use]
    pub fn peers(&self) -> Vec<Peer> {
        self.live().map(|row| row.member.peer()).collect()
    }

    /// Every live link with its member's name and incarnation. Beats go over all of them.
    #[must_use]
    pub fn links(&self) -> Vec<(LinkId, NodeId, u64)> {
        let of = |row: &Row| {
            let (id, life) = (row.member.id.clone(), row.member.incarnation);
            row.links.keys().map(move |link| (*link, id.clone(), life)).collect::<Vec<_>>()
        };
        self.live().flat_map(of).collect()
    }

    /// The link to use for a member, where there are two for a moment: the older one, unless it has gone silent.
    #[must_use]
    pub fn link_of(&self, id: &NodeId) -> Option<LinkId> {
        self.rows.get(id).and_then(|row| self.preferred(row))
    }

    /// The controller that leads in this node's view: of this node and the linked ones, of those that are controllers and
    /// do not drain, the one with the lowest incarnation (the oldest); ties by name.
    #[must_use]
    pub fn leader(&self) -> Option<NodeId> {
        let members = std::iter::once(&self.me).chain(self.live().map(|row| &row.member));
        members
            .filter(|m| m.roles.contains(Role::Controller) && !m.draining)
            .min_by_key(|m| (m.incarnation, &m.id))
            .map(|m| m.id.clone())
    }

    /// There is a link, or nobody to join: no seeds, or only this node itself as a seed.
    #[must_use]
    pub fn is_joined(&self) -> bool {
        self.connected || self.is_its_own_seed()
    }

    /// There was a link once.
    #[must_use]
    pub const fn was_joined(&self) -> bool {
        self.was_joined
    }

    /// Checks the invariants.
    ///
    /// # Errors
    /// When a member is linked without a link or lost with one, a link has two members, this node is its own member, a
    /// row is heard before one of its links, or the node takes itself for alone or not alone wrongly.
    pub fn check(&self) -> Result<(), Broken> {
        let mut seen = BTreeSet::new();
        for (id, row) in &self.rows {
            ensure_invariant!(*id == row.member.id, "membership_row_name", "{id} is {}", row.member.id);
            ensure_invariant!(*id != self.me.id, "membership_self_is_no_peer", "{id}");
            ensure_invariant!(
                row.links.is_empty() == row.loss.is_some(),
                "membership_links_match_state",
                "{id}: {:?}, lost: {:?}",
                row.links,
                row.loss
            );
            for (link, heard) in &row.links {
                ensure_invariant!(seen.insert(*link), "membership_link_has_one_member", "{link:?} of {id}");
                ensure_invariant!(
                    *heard <= row.heard,
                    "membership_heard_is_latest",
                    "{link:?} of {id}: {heard:?}, the member {:?}",
                    row.heard
                );
            }
        }
        let live = self.live().count();
        ensure_invariant!(
            self.connected == (live > 0),
            "membership_knows_if_alone",
            "connected: {}, live members: {live}",
            self.connected
        );
        Ok(())
    }

    fn live(&self) -> impl Iterator<Item = &Row> {
        self.rows.values().filter(|row| row.loss.is_none())
    }

    fn preferred(&self, row: &Row) -> Option<LinkId> {
        row.links.iter().find(|(_, heard)| **heard + self.two_beats() >= row.heard).map(|(link, _)| *link)
    }
}
