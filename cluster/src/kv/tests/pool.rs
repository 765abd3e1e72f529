//! Links to a pool, which takes pages of any layout: the first question says of which.

use tokio::time::timeout;

use super::network::{Host, terms};
use super::*;
use crate::cookie::Cookie;
use crate::kv::frame::Prefix;
use crate::kv::shape::Shelf;

/// Pages of 1,024 bytes.
const OTHER: PageLayout = PageLayout { page_tokens: 16, ..LAYOUT };

fn pool_terms(name: &str) -> KvTerms {
    KvTerms::of_pool(peer(name), &Cookie::from_text("x"), None, 1 << 20)
}

fn ask(layout: WireLayout) -> Outbound {
    let mut ask = one_of_each().remove(0);
    let KvHeader::Ask { layout: asked, .. } = &mut ask else { panic!("{ask:?}") };
    *asked = layout;
    ask.into()
}

fn pages_of(layout: PageLayout, first: u32, count: u32) -> Outbound {
    let pool = PagePool::new(layout.page_bytes(), 64, 0);
    Outbound {
        pages: (first..first + count).map(|number| page(&pool, number)).collect(),
        ..pages_from(first, count)
    }
}

type Halves = (Box<dyn KvSend>, Box<dyn KvRecv>);

/// A worker's end of a link to a pool, and the pool's.
async fn linked(host: &mut Host, worker: &KvTerms) -> (Halves, Halves) {
    let near = host.dial(worker).await.expect("linked");
    let far = host.link().await as Box<dyn KvLink>;
    ((Box::new(near) as Box<dyn KvLink>).split(), far.split())
}

async fn next(recv: &mut Box<dyn KvRecv>) -> Result<Option<Inbound>, KvError> {
    timeout(LIMIT, recv.recv()).await.expect("in time")
}

async fn arrives(send: &mut Box<dyn KvSend>, recv: &mut Box<dyn KvRecv>, message: Outbound) {
    send.send(message.clone()).await.expect("sent");
    let got = next(recv).await.expect("received").expect("a message");
    assert_eq!(said(&got), meant(&message));
}

/// Two workers of different models, both ways over each link, both at once.
#[tokio::test]
async fn a_pool_takes_and_gives_pages_of_any_layout() {
    let mut host = Host::start(pool_terms("p")).await;
    let cookie = Cookie::from_text("x");
    let workers =
        [(LAYOUT, terms("a", "x", None)), (OTHER, KvTerms::new(peer("b"), &cookie, None, OTHER, 64))];
    let mut links = Vec::new();
    for (layout, worker) in &workers {
        let (mut near, mut far) = linked(&mut host, worker).await;
        arrives(&mut near.0, &mut far.1, ask((*layout).into())).await;
        links.push((*layout, near, far));
    }
    for round in 0..3 {
        for (layout, near, far) in &mut links {
            arrives(&mut near.0, &mut far.1, pages_of(*layout, round * 5, 5)).await;
            arrives(&mut far.0, &mut near.1, pages_of(*layout, round * 7, 3)).await;
            arrives(&mut near.0, &mut far.1, ask((*layout).into())).await;
        }
    }
    // Pages of the other worker's are no pages of this link's, to send or to receive.
    let [(_, near, far), (_, _, _)] = &mut links[..] else { panic!("two links") };
    let error = far.0.send(pages_of(OTHER, 0, 1)).await.unwrap_err();
    assert_eq!(error, KvError::Layout { field: "page_bytes", ours: 256, theirs: 1024 });
    arrives(&mut far.0, &mut near.1, pages_of(LAYOUT, 0, 1)).await;
}

/// A pool opens a link for a layout that it knows.
#[tokio::test]
async fn a_pool_that_dials_says_what_it_wants() {
    let mut host = Host::start(terms("a", "x", None)).await;
    let pool = pool_terms("p");
    assert!(pool.pool().is_none());
    let known = pool.with_layout(LAYOUT).expect("a layout");
    let (mut near, mut far) = linked(&mut host, &known).await;
    arrives(&mut near.0, &mut far.1, ask(LAYOUT.into())).await;
    arrives(&mut far.0, &mut near.1, pages_from(0, 4)).await;
    assert_eq!(near.0.send(ask(OTHER.into())).await.map_err(|e| e.as_str()), Err("layout"));
    // Buffers of one size are shared by all links with it.
    assert_eq!(
        known.pool().map(PagePool::out),
        pool.with_layout(LAYOUT).expect("one").pool().map(PagePool::out)
    );
    // The worker has pages of another size: that is heard before anything is asked.
    let error = host.dial(&pool.with_layout(OTHER).expect("a layout")).await.unwrap_err();
    assert!(error.is_final && error.to_string().contains("page-tokens"), "{error}");
    let whole = KvTerms::of_pool(peer("q"), &Cookie::from_text("x"), None, 1 << 20);
    assert!(host.dial(&whole).await.is_ok(), "and a pool that has not said may link");
}

/// What `bytes` make of a link to a pool that has not been asked anything.
async fn refused(bytes: Vec<u8>) -> KvError {
    let any = Shape::Any(Shelf::new(1 << 20)).settings(LIMIT);
    let (got, end) = receive_all(std::io::Cursor::new(bytes), any).await;
    assert!(got.is_empty());
    end.expect_err("refused")
}

#[tokio::test]
async fn nothing_but_a_question_comes_first() {
    for message in messages().into_iter().skip(1) {
        let kind = CheckedHeader::encode(message.header.clone()).expect("a header").kind();
        let (bytes, _) = bytes_of(&[message]).await;
        let error = refused(bytes).await;
        assert!(matches!(error, KvError::Malformed { field: "kind", .. }), "{kind:?}: {error}");
    }
    let mut host = Host::start(pool_terms("p")).await;
    let (_near, mut far) = linked(&mut host, &terms("a", "x", None)).await;
    let error = far.0.send(pages_from(0, 1)).await.unwrap_err();
    assert!(error.is_of_message() && error.to_string().contains("ask"), "{error}");
}

/// Layouts that no page has, or one that fits into no message: the field is named, and nothing is allocated.
#[tokio::test]
async fn a_garbage_layout_is_refused() {
    let ok = WireLayout::from(LAYOUT);
    let most = u32::MAX;
    let cases = [
        ("page_tokens", WireLayout { page_tokens: 0, ..ok }),
        ("layers", WireLayout { layers: 0, ..ok }),
        ("kv_heads", WireLayout { kv_heads: 0, ..ok }),
        ("head_dim", WireLayout { head_dim: 0, ..ok }),
        ("element_bytes", WireLayout { element_bytes: 0, ..ok }),
        ("page_bytes", WireLayout { layers: 1 << 19, ..ok }),
        (
            "page_bytes",
            WireLayout {
                page_tokens: most,
                layers: most,
                kv_heads: most,
                head_dim: most,
                element_bytes: most,
            },
        ),
    ];
    for (field, layout) in cases {
        let header = CheckedHeader::encode(ask(layout).header).expect("a header");
        let prefix = Prefix::encode(Kind::Ask, header.as_bytes(), 0, None);
        let error = refused([prefix.as_slice(), header.as_bytes()].concat()).await;
        assert!(error.to_string().contains(&format!("`{field}`")), "{field}: {error}");
        let WireLayout { page_tokens, layers, kv_heads, head_dim, element_bytes } = layout;
        let known = PageLayout { page_tokens, layers, kv_heads, head_dim, element_bytes };
        assert_eq!(pool_terms("p").with_layout(known).map(|_| ()), Err(error));
    }
    // Of a sound one the second question of another layout is refused.
    let both = [ask(ok), ask(OTHER.into())].map(|ask| {
        let header = CheckedHeader::encode(ask.header).expect("a header");
        let prefix = Prefix::encode(Kind::Ask, header.as_bytes(), 0, None);
        [prefix.as_slice(), header.as_bytes()].concat()
    });
    let any = Shape::Any(Shelf::new(1 << 20)).settings(LIMIT);
    let (got, end) = receive_all(std::io::Cursor::new(both.concat()), any).await;
    assert_eq!(got.len(), 1);
    assert_eq!(end, Err(KvError::Layout { field: "page_tokens", ours: 4, theirs: 16 }));
}

/// Sizes that nobody uses any more are forgotten, with their buffers.
#[tokio::test]
async fn a_pool_keeps_no_buffers_for_links_that_are_gone() {
    let pool = pool_terms("p");
    let used = pool.with_layout(LAYOUT).expect("a layout");
    for tokens in 1..50 {
        let layout = PageLayout { page_tokens: tokens * 4, ..LAYOUT };
        drop(pool.with_layout(layout).expect("a layout").pool().expect("settled").try_take());
    }
    assert!(pool.sizes() <= 2, "{}", pool.sizes());
    drop(used);
}
