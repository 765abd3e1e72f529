//! Puts pages that have come where they belong.

use super::Receiving;
use crate::node::worker::transfers::Side;

impl Receiving {
    /// Writes what came into the reserved pages; false where it is not what was asked for.
    pub(super) fn import(&mut self, first: u32, count: u32, side: &mut Side<'_>) -> bool {
        let Some(block) = self.here.take_if(|b| b.first == first && b.count == count) else { return false };
        // A request that ran on elsewhere may come with more pages than it had when it was given its own here.
        let more = (first + count).saturating_sub(self.table.len() as u32);
        if more > 0
            && let Some(grown) = side.core.grow_received(self.id.0, self.id.1, more)
        {
            self.table.extend(grown);
        }
        let Some(table) = self.table.get(first as usize..(first + count) as usize) else { return false };
        let bodies = block.slots.chunks(self.layout.page_tokens as usize);
        table.iter().zip(bodies).all(|(page, body)| {
            side.pages.page_mut(page.index()).map(|slots| slots.copy_from_slice(body)).is_some()
        })
    }

    pub(super) fn bytes(&self, pages: u32) -> u64 {
        u64::from(pages) * self.layout.page_bytes() as u64
    }
}
