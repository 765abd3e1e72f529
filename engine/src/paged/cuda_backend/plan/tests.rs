use super::*;

/// Sequence `i` has `spans[i].1` rows from position `spans[i].0` on, and the pages `10 * (i + 1)`, `10 * (i + 1) + 1`, …
fn batch(spans: &[(usize, usize)]) -> (Vec<Span>, Vec<u32>) {
    let (mut out, mut tables, mut first_row) = (Vec::new(), Vec::new(), 0);
    for (i, &(start, rows)) in spans.iter().enumerate() {
        // One page more than is read, as the block table of a slice may have.
        let pages = (start + rows).div_ceil(16) + 1;
        let from = tables.len();
        tables.extend((0..pages).map(|page| (10 * (i + 1) + page) as u32));
        out.push(Span { first_row, rows, start, table: from..from + pages });
        first_row += rows;
    }
    (out, tables)
}

fn plan(spans: &[(usize, usize)]) -> Plan {
    let (spans, tables) = batch(spans);
    Plan::new(&spans, &tables, 16, 4)
}

#[test]
fn decodes_alone_are_one_call_in_order() {
    let plan = plan(&[(0, 1), (31, 1), (16, 1)]);
    let tables = BlockTables { pages: vec![10, 0, 20, 21, 30, 31], width: 2 };
    assert_eq!(
        plan,
        Plan {
            singles: vec![Singles { rows: None, lens: vec![1, 32, 17], longest: 32, tables }],
            chunks: vec![],
            order: None,
        }
    );
}

#[test]
fn chunks_are_padded_to_the_longest_of_their_group() {
    let plan = plan(&[(0, 3), (20, 4)]);
    assert_eq!(
        plan.chunks,
        [Chunks {
            rows: vec![0, 1, 2, 2, 3, 4, 5, 6],
            padded: 4,
            kept: vec![0, 1, 2, 4, 5, 6, 7],
            query_ends: vec![0, 3, 7],
            key_ends: vec![0, 3, 27],
            tables: BlockTables { pages: vec![10, 0, 20, 21], width: 2 },
        }]
    );
    assert_eq!((plan.singles.len(), plan.order), (0, None));
}

#[test]
fn very_different_chunks_are_different_calls() {
    let plan = plan(&[(0, 2), (0, 600), (0, 2), (0, 513)]);
    let shapes: Vec<_> = plan.chunks.iter().map(|call| (call.kept.len(), call.rows.len())).collect();
    assert_eq!(shapes, [(4, 4), (1113, 1200)]);
}

#[test]
fn mixed_rows_find_their_results_again() {
    let plan = plan(&[(0, 2), (5, 1), (0, 40), (7, 1), (3, 2)]);
    let order = plan.order.as_ref().unwrap();
    // The rows in the order in which their results appear.
    let mut results: Vec<u32> = plan.singles.iter().flat_map(|call| call.rows.clone().unwrap()).collect();
    for call in &plan.chunks {
        results.extend(call.kept.iter().map(|kept| call.rows[*kept as usize]));
    }
    let found: Vec<_> = order.iter().map(|at| results[*at as usize]).collect();
    assert_eq!(found, (0..46).collect::<Vec<_>>());
}

#[test]
fn long_contexts_are_kept_from_the_version_that_holds_all_scores() {
    let plan = plan(&vec![(9000, 1); 300]);
    assert!(plan.singles.iter().all(|call| call.lens.len() * 4 <= 512));
    assert_eq!(plan.singles.iter().map(|call| call.lens.len()).sum::<usize>(), 300);
    assert_eq!(plan.order, None);
}

#[test]
fn nothing_is_planned_for_no_rows() {
    assert_eq!(plan(&[]), Plan::default());
}
