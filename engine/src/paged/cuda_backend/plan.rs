//! Which kernel computes which rows' attention, and the index arrays that it reads.
//!
//! A row that is alone of its sequence (a decode) goes to paged attention, which reads keys and values in their pages.
//! Several rows of a sequence (a chunk of a prefill) go to flash attention over keys and values that are gathered from the
//! pages first; their queries are padded to one length, so that sequences are grouped by length.

use std::collections::BTreeMap;

use super::super::batch::Span;

/// Contexts over this length are left to paged attention's second version: its first keeps the scores of a whole context
/// in shared memory.
const LONG_CONTEXT: usize = 8192;

/// The first version takes over at more than so many sequences times heads, whatever the context.
const SECOND_VERSION_HEADS: usize = 512;

/// The attention of a set of rows.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Rows that are alone of their sequence.
    pub(super) singles: Vec<Singles>,
    /// Sequences of several rows.
    pub(super) chunks: Vec<Chunks>,
    /// Row `r` of the set is row `order[r]` of the results of `singles`, then `chunks`, one after the other; `None`: row
    /// `r`.
    pub(super) order: Option<Vec<u32>>,
}

/// Pages of several sequences, padded to the longest with page 0, which is not read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct BlockTables {
    /// `[sequences, width]`.
    pub(super) pages: Vec<u32>,
    /// Pages a sequence.
    pub(super) width: usize,
}

/// One call of paged attention.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Singles {
    /// Rows of the set; `None`: all of them.
    pub(super) rows: Option<Vec<u32>>,
    /// Tokens that each row sees, itself included.
    pub(super) lens: Vec<u32>,
    /// The largest of `lens`.
    pub(super) longest: usize,
    /// Where they are.
    pub(super) tables: BlockTables,
}

/// One call of flash attention.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chunks {
    /// Rows of the set, `[sequences, padded]`; a sequence's last row repeats as padding.
    pub(super) rows: Vec<u32>,
    /// Rows a sequence, padding included.
    pub(super) padded: usize,
    /// Which of `rows` are not padding.
    pub(super) kept: Vec<u32>,
    /// Where each sequence's queries end if they were packed, with a leading 0.
    pub(super) query_ends: Vec<u32>,
    /// Where each sequence's gathered keys end, with a leading 0.
    pub(super) key_ends: Vec<u32>,
    /// Where they are gathered from.
    pub(super) tables: BlockTables,
}

impl Plan {
    /// Divides the rows of `spans` (all rows of a set, in order) among kernel calls. Spans index into `tables`.
    pub(super) fn new(spans: &[Span], tables: &[u32], page_tokens: usize, heads: usize) -> Self {
        let rows: usize = spans.iter().map(|span| span.rows).sum();
        let (singles, several): (Vec<_>, Vec<_>) =
            spans.iter().filter(|span| span.rows > 0).partition(|span| span.rows == 1);
        let singles: Vec<_> = single_calls(&singles, heads)
            .map(|call| Singles {
                rows: (call.len() < rows).then(|| call.iter().map(|span| span.first_row as u32).collect()),
                lens: call.iter().map(|span| seen(span) as u32).collect(),
                longest: call.iter().map(|span| seen(span)).max().unwrap_or(0),
                tables: BlockTables::new(call, tables, page_tokens),
            })
            .collect();
        // Lengths of one group differ by less than a factor of two, and so does the padding.
        let mut by_length = BTreeMap::<usize, Vec<&Span>>::new();
        for span in several {
            by_length.entry(span.rows.next_power_of_two()).or_default().push(span);
        }
        let chunks: Vec<_> = by_length.values().map(|call| Chunks::new(call, tables, page_tokens)).collect();
        let order = order(&singles, &chunks, rows);
        Self { singles, chunks, order }
    }
}

impl BlockTables {
    fn new(spans: &[&Span], tables: &[u32], page_tokens: usize) -> Self {
        let used = |span: &Span| seen(span).div_ceil(page_tokens);
        let width = spans.iter().map(|span| used(span)).max().unwrap_or(0);
        let mut pages = Vec::with_capacity(spans.len() * width);
        for span in spans {
            pages.extend_from_slice(&tables[span.table.clone()][..used(span)]);
            pages.resize(pages.len().next_multiple_of(width), 0);
        }
        Self { pages, width }
    }
}

impl Chunks {
    fn new(spans: &[&Span], tables: &[u32], page_tokens: usize) -> Self {
        let padded = spans.iter().map(|span| span.rows).max().unwrap_or(0);
        let (mut rows, mut kept) = (Vec::with_capacity(spans.len() * padded), Vec::new());
        let (mut query_ends, mut key_ends) = (vec![0], vec![0]);
        let (mut queries, mut keys) = (0, 0);
        for span in spans {
            kept.extend((rows.len()..rows.len() + span.rows).map(|row| row as u32));
            rows.extend((0..padded).map(|i| (span.first_row + i.min(span.rows - 1)) as u32));
            queries += span.rows;
            keys += seen(span);
            query_ends.push(queries as u32);
            key_ends.push(keys as u32);
        }
        Self {
            rows,
            padded,
            kept,
            query_ends,
            key_ends,
            tables: BlockTables::new(spans, tables, page_tokens),
        }
    }
}

/// Tokens that the last row of a span sees.
fn seen(span: &Span) -> usize {
    span.start + span.rows
}

/// Divides single rows among calls of paged attention.
fn single_calls<'a, 'b>(singles: &'b [&'a Span], heads: usize) -> impl Iterator<Item = &'b [&'a Span]> {
    let is_long = singles.iter().any(|span| seen(span) > LONG_CONTEXT);
    let most = if is_long { (SECOND_VERSION_HEADS / heads.max(1)).max(1) } else { singles.len().max(1) };
    singles.chunks(most)
}

/// Where each row's result is; `None` if all are in their places.
fn order(singles: &[Singles], chunks: &[Chunks], rows: usize) -> Option<Vec<u32>> {
    let mut order = vec![0; rows];
    let mut next = 0;
    let mut place = |row: u32| {
        order[row as usize] = next;
        next += 1;
    };
    for call in singles {
        match &call.rows {
            Some(rows) => rows.iter().copied().for_each(&mut place),
            None => (0..rows as u32).for_each(&mut place),
        }
    }
    for call in chunks {
        call.kept.iter().map(|kept| call.rows[*kept as usize]).for_each(&mut place);
    }
    (!order.is_sorted()).then_some(order)
}

#[cfg(test)]
mod tests;
