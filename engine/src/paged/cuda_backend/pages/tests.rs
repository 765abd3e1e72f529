//! The kernels' layout, on candle's CPU tensors.

use super::*;

fn layout(element_bytes: u32) -> PageLayout {
    PageLayout { page_tokens: 16, layers: 2, kv_heads: 3, head_dim: 32, element_bytes }
}

/// A page whose elements are all different.
fn content(layout: &PageLayout) -> Vec<u8> {
    let elements = layout.page_bytes() / layout.element_bytes as usize;
    let value = |i: usize| (i % 2000) as f32 + (i / 2000) as f32 / 8.0;
    match layout.element_bytes {
        4 => (0..elements).flat_map(|i| value(i).to_le_bytes()).collect(),
        _ => (0..elements).flat_map(|i| f16::from_f32(value(i)).to_le_bytes()).collect(),
    }
}

fn exported(pages: &KvPages, page: u32, layout: &PageLayout) -> Vec<u8> {
    let mut out = vec![0xff; layout.page_bytes()];
    pages.export(page, &mut out).unwrap();
    out
}

#[test]
fn an_imported_page_is_exported_again_and_others_stay_empty() {
    for layout in [layout(2), layout(4)] {
        let pages = KvPages::new(&layout, 4, &Device::Cpu).unwrap();
        let content = content(&layout);
        pages.import(2, &content).unwrap();
        assert_eq!(exported(&pages, 2, &layout), content);
        for other in [0, 1, 3] {
            assert!(exported(&pages, other, &layout).iter().all(|byte| *byte == 0), "page {other}");
        }
        pages.copy(2, 0).unwrap();
        assert_eq!(exported(&pages, 0, &layout), content);
    }
}

#[test]
fn elements_lie_where_the_kernels_look_for_them() {
    let layout = layout(4);
    let pages = KvPages::new(&layout, 2, &Device::Cpu).unwrap();
    let bytes = content(&layout);
    pages.import(1, &bytes).unwrap();
    let canonical = |layer: usize, kv: usize, token: usize, head: usize, dim: usize| {
        let at = (((layer * 2 + kv) * 16 + token) * 3 + head) * 32 + dim;
        f32::from_le_bytes(*bytes[4 * at..].first_chunk::<4>().unwrap())
    };
    for (layer, token, head, dim) in [(0, 0, 0, 0), (0, 5, 2, 17), (1, 15, 1, 31)] {
        let keys: Vec<f32> = pages.layers[layer].keys.flatten_all().unwrap().to_vec1().unwrap();
        let values: Vec<f32> = pages.layers[layer].values.flatten_all().unwrap().to_vec1().unwrap();
        // Page 1 of [pages, 3 heads, 8 groups, 16 tokens, 4] and of [pages, 3 heads, 32, 16 tokens].
        let key = keys[(((3 + head) * 8 + dim / 4) * 16 + token) * 4 + dim % 4];
        let value = values[((3 + head) * 32 + dim) * 16 + token];
        assert_eq!(key, canonical(layer, 0, token, head, dim));
        assert_eq!(value, canonical(layer, 1, token, head, dim));
    }
}
