use super::*;

#[test]
fn pages_are_aligned_shared_and_recycled() {
    let pool = PagePool::new(1000, 64, 2);
    let mut page = pool.try_take().expect("room");
    assert_eq!((page.len(), page.as_ptr() as usize % ALIGNMENT), (1000, 0));
    page.fill(7);
    let page = page.freeze();
    let at = page.as_ptr();
    let other = page.clone();
    drop(page);
    assert_eq!((other.as_ptr(), pool.out(), pool.idle()), (at, 1, 0), "the same bytes, still out");
    assert!(other.iter().all(|byte| *byte == 7));
    drop(other);
    assert_eq!((pool.out(), pool.idle()), (0, 1));
    assert_eq!(pool.try_take().expect("room").as_ptr(), at, "recycled");
}

#[test]
fn no_more_are_out_and_kept_than_may_be() {
    let pool = PagePool::new(64, MAX_PAGES, 3);
    let pages: Vec<PageFill> = std::iter::from_fn(|| pool.try_take()).collect();
    assert_eq!((pages.len(), pool.out()), (MAX_PAGES, MAX_PAGES));
    let mut addresses: Vec<usize> = pages.iter().map(|page| page.as_ptr() as usize).collect();
    addresses.sort_unstable();
    addresses.dedup();
    assert_eq!(addresses.len(), MAX_PAGES, "no buffer is out twice");
    drop(pages);
    assert_eq!((pool.out(), pool.idle()), (0, 3));
    assert_eq!(PagePool::new(64, 0, 0).0.limit, MAX_PAGES, "a message always fits");
}

/// Two messages that each need most of the pool take turns: neither keeps a part and waits for the rest.
#[tokio::test]
async fn a_message_gets_all_of_its_room_or_none() {
    let pool = PagePool::new(64, MAX_PAGES, 0);
    let mut first = pool.reserve(MAX_PAGES).await;
    let one = first.take().expect("reserved");
    {
        let second = std::pin::pin!(pool.reserve(2));
        let now = at_once(second);
        assert!(now.is_none(), "all room is promised");
    }
    drop(first);
    assert_eq!(pool.out(), 1, "what was not taken is free again");
    let mut second = pool.reserve(MAX_PAGES - 1).await;
    let taken: Vec<PageFill> = std::iter::from_fn(|| second.take()).collect();
    assert_eq!(taken.len(), MAX_PAGES - 1);
    drop((one, taken));
    assert_eq!(pool.out(), 0);
}

/// What `future` gives at once, if it does.
fn at_once<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    match future.poll(&mut cx) {
        std::task::Poll::Ready(value) => Some(value),
        std::task::Poll::Pending => None,
    }
}
