//! The rows of a step, flattened: what the graph computes over.

use std::ops::Range;

use policies::step::Slice;

use crate::cpu::KvSlot;

/// A ragged batch as flat arrays; row `r` of every array is the same token.
#[derive(Debug, Default)]
pub(crate) struct RaggedBatch {
    /// Token of each row.
    pub(crate) tokens: Vec<u32>,
    /// Position of each row in its sequence.
    pub(crate) positions: Vec<u32>,
    /// Where each row's keys and values go; no two alike.
    pub(crate) slots: Vec<KvSlot>,
    /// Pages of the sequences, one after the other; spans index into it.
    pub(crate) tables: Vec<u32>,
    /// The rows of each sequence.
    pub(crate) spans: Vec<Span>,
    /// Rows whose logits are wanted, ascending.
    pub(crate) outputs: Vec<u32>,
    /// Positions of the rows in `outputs`.
    pub(crate) output_positions: Vec<u32>,
    /// As `spans`, over the rows of `outputs` in place of all rows.
    pub(crate) output_spans: Vec<Span>,
}

/// Consecutive rows of one sequence.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    /// The first of them.
    pub(crate) first_row: usize,
    /// How many there are.
    pub(crate) rows: usize,
    /// Position of the first.
    pub(crate) start: usize,
    /// The sequence's pages, in [`RaggedBatch::tables`].
    pub(crate) table: Range<usize>,
}

/// Which rows an operation is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowSet {
    /// All rows of the batch.
    All,
    /// Those whose logits are wanted.
    Outputs,
}

impl RaggedBatch {
    /// Empties it for the next step.
    pub(crate) fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.slots.clear();
        self.tables.clear();
        self.spans.clear();
        self.outputs.clear();
        self.output_positions.clear();
        self.output_spans.clear();
    }

    /// Appends a slice, whose block table is known to suffice, with `outputs` of its rows wanted (relative to the slice).
    pub(crate) fn push(&mut self, slice: &Slice, page_tokens: u32, outputs: Range<usize>) {
        let first_row = self.tokens.len();
        let table = self.tables.len()..self.tables.len() + slice.block_table.len();
        let start = slice.start as usize;
        self.tokens.extend_from_slice(&slice.tokens);
        self.tables.extend(slice.block_table.iter().map(|page| page.0));
        for position in (slice.start..).take(slice.tokens.len()) {
            let page = slice.block_table[(position / page_tokens) as usize].0;
            self.positions.push(position);
            self.slots.push(KvSlot { page, slot: position % page_tokens });
        }
        self.spans.push(Span { first_row, rows: slice.tokens.len(), start, table: table.clone() });
        if !outputs.is_empty() {
            let (rows, start) = (outputs.len(), start + outputs.start);
            self.output_spans.push(Span { first_row: self.outputs.len(), rows, start, table });
            self.outputs.extend(outputs.clone().map(|row| (first_row + row) as u32));
            self.output_positions.extend(outputs.map(|row| slice.start + row as u32));
        }
    }

    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// Positions of a set of rows.
    pub(crate) fn positions(&self, set: RowSet) -> &[u32] {
        match set {
            RowSet::All => &self.positions,
            RowSet::Outputs => &self.output_positions,
        }
    }

    /// Spans of a set of rows.
    pub(crate) fn spans(&self, set: RowSet) -> &[Span] {
        match set {
            RowSet::All => &self.spans,
            RowSet::Outputs => &self.output_spans,
        }
    }

    /// A slot that two rows would write, if there is one.
    pub(crate) fn slot_written_twice(&self) -> Option<KvSlot> {
        let mut slots: Vec<_> = self.slots.iter().map(|slot| (slot.page, slot.slot)).collect();
        slots.sort_unstable();
        let twice = slots.windows(2).find(|pair| pair[0] == pair[1])?;
        Some(KvSlot { page: twice[0].0, slot: twice[0].1 })
    }
}
