use super::*;
use crate::cpu::testing::Rng;

fn store(dtype: KvDtype) -> KvStore {
    KvStore::new(3, 5, 32, 2, 24, dtype).unwrap()
}

/// Fills layer `layer` of `page` and returns K and V as `[token][kv head][dim]`.
fn fill(kv: &mut KvStore, rng: &mut Rng, page: u32, layer: usize) -> (Vec<f32>, Vec<f32>) {
    let width = kv.kv_heads() * kv.head_dim();
    // Values that f16 holds exactly.
    let mut values = |n| (0..n).map(|_| rng.below(2048) as f32 / 64.0 - 16.0).collect::<Vec<f32>>();
    let (k, v) = (values(kv.page_tokens() * width), values(kv.page_tokens() * width));
    for (slot, (k, v)) in k.chunks(width).zip(v.chunks(width)).enumerate() {
        kv.write(layer, KvSlot { page, slot: slot as u32 }, k, v);
    }
    (k, v)
}

fn decode(dtype: KvDtype, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        KvDtype::F16 => bytes.chunks(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        KvDtype::F32 => bytes.chunks(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
    }
}

#[test]
fn an_exported_page_is_layer_kv_token_head_dim() {
    for dtype in [KvDtype::F16, KvDtype::F32] {
        let (mut kv, mut rng) = (store(dtype), Rng::new(1));
        let expected: Vec<f32> = (0..3)
            .flat_map(|layer| {
                let (k, v) = fill(&mut kv, &mut rng, 4, layer);
                k.into_iter().chain(v)
            })
            .collect();
        let mut bytes = vec![0xAA; kv.page_bytes()];
        kv.export_page(4, &mut bytes);
        assert_eq!(decode(dtype, &bytes), expected);
    }
}

#[test]
fn an_imported_page_exports_the_same_bytes_and_touches_no_other() {
    for dtype in [KvDtype::F16, KvDtype::F32] {
        let (mut kv, mut rng) = (store(dtype), Rng::new(2));
        for page in 0..5 {
            for layer in 0..3 {
                fill(&mut kv, &mut rng, page, layer);
            }
        }
        let export = |kv: &KvStore, page| {
            let mut bytes = vec![0; kv.page_bytes()];
            kv.export_page(page, &mut bytes);
            bytes
        };
        let before: Vec<Vec<u8>> = (0..5).map(|page| export(&kv, page)).collect();
        let data: Vec<u8> = (0..kv.page_bytes()).map(|_| rng.bits() as u8).collect();
        kv.import_page(2, &data);
        assert_eq!(export(&kv, 2), data);
        kv.copy_page(2, 0);
        assert_eq!(export(&kv, 0), data);
        for page in [1, 3, 4] {
            assert_eq!(export(&kv, page as u32), before[page]);
        }
    }
}

#[test]
fn many_rows_are_written_as_single_rows_are() {
    for dtype in [KvDtype::F16, KvDtype::F32] {
        let compute = Compute::new(3).unwrap();
        let (mut one, mut many, mut rng) = (store(dtype), store(dtype), Rng::new(3));
        for count in [1, 31, 32, 100] {
            let mut slots: Vec<KvSlot> = (0..160).map(|i| KvSlot { page: i % 5, slot: i / 5 }).collect();
            for i in (1..slots.len()).rev() {
                slots.swap(i, rng.below(i + 1));
            }
            slots.truncate(count);
            let (k, v) = (rng.values(count * 48), rng.values(count * 48));
            for ((k, v), &at) in k.chunks(48).zip(v.chunks(48)).zip(&slots) {
                one.write(1, at, k, v);
            }
            many.write_rows(&compute, 1, &slots, &k, &v);
            assert_eq!(one.data.as_slice(), many.data.as_slice());
        }
    }
}

#[test]
fn shapes_that_attention_cannot_read_are_refused() {
    let refused = |layers, pages, tokens, heads, dim| {
        KvStore::new(layers, pages, tokens, heads, dim, KvDtype::F16).unwrap_err().to_string()
    };
    assert!(refused(1, 1, 24, 1, 64).contains("page-tokens = 24"));
    assert!(refused(1, 1, 0, 1, 64).contains("page-tokens = 0"));
    assert!(refused(1, 1, 16, 1, 60).contains("head-dim = 60"));
    assert!(refused(1, 1, 16, 1, 264).contains("head-dim = 264"));
    assert!(refused(0, 1, 16, 1, 64).contains("layers = 0"));
    assert!(refused(1, 0, 16, 1, 64).contains("pages = 0"));
    assert!(refused(1, 1, 16, 0, 64).contains("kv-heads = 0"));
    assert!(refused(1 << 20, 1 << 31, 1 << 20, 1 << 20, 256).contains("cannot be allocated"));
    assert!(refused(1 << 10, 1 << 31, 1 << 10, 1 << 4, 256).contains("cannot be allocated"));
}
