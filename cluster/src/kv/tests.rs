//! Messages arrive as they were sent, however they are cut on the way; and what was not sent never arrives.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use policies::kv::PageLayout;
use proptest::collection::vec;
use proptest::prelude::*;
use rkyv::rancor;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, duplex};

use super::proof::KvPeer;
use super::shape::{Pages, Settings, Shape};
use super::*;

mod carriers;
mod hostile;
mod network;
mod pool;

/// Pages of 256 bytes.
pub(super) const LAYOUT: PageLayout =
    PageLayout { page_tokens: 4, layers: 1, kv_heads: 1, head_dim: 8, element_bytes: 4 };

/// Far longer than anything takes here.
const LIMIT: Duration = Duration::from_secs(60);

pub(super) fn peer(name: &str) -> KvPeer {
    KvPeer { worker: config::ids::WorkerId::new(name.into(), 7), address: format!("{name}.example:7001") }
}

fn settings() -> Settings {
    settings_with(256, LIMIT)
}

/// Of a link with so many buffers.
fn settings_with(pages: usize, stall: Duration) -> Settings {
    let pool = PagePool::new(LAYOUT.page_bytes(), pages, pages);
    Shape::One(Pages { layout: LAYOUT, pool }).settings(stall)
}

/// Buffers of a link that hold something.
fn out(settings: &Settings) -> usize {
    settings.pages().map_or(0, |pages| pages.pool.out())
}

/// A page with contents that no other number gives.
fn page(pool: &PagePool, number: u32) -> PageBuf {
    let mut page = pool.try_take().expect("room");
    for (i, byte) in page.iter_mut().enumerate() {
        *byte = (number as usize * 31 + i * 7) as u8;
    }
    page.freeze()
}

fn pages_from(first: u32, count: u32) -> Outbound {
    let pool = PagePool::new(LAYOUT.page_bytes(), 64, 0);
    let pages: Vec<PageBuf> = (first..first + count).map(|number| page(&pool, number)).collect();
    let hashes = (0..count).map(|n| [n as u8; 16]).collect();
    let header = KvHeader::Pages { transfer: 7, generation: 9, first, checksums: Vec::new(), hashes };
    Outbound { header, pages }
}

/// A header of each kind, of transfer 7 and generation 9; none has pages to follow.
pub(super) fn one_of_each() -> Vec<KvHeader> {
    let (transfer, generation) = (7, 9);
    vec![
        KvHeader::Ask {
            transfer,
            generation,
            fingerprint: [5; 32],
            layout: LAYOUT.into(),
            first_page: 3,
            want_pages: true,
            reserved: true,
            window: 16,
            spec: vec![1, 2, 3],
            takes: Some(2),
            held: false,
            prefix: Some(WirePrefix { address: "h:1".to_owned(), tokens: 640 }),
        },
        KvHeader::Accepted { transfer, generation },
        KvHeader::Refused {
            transfer,
            generation,
            code: RefusalCode::QueueFull,
            why: "64 requests wait".to_owned(),
        },
        KvHeader::Pages { transfer, generation, first: 0, checksums: Vec::new(), hashes: Vec::new() },
        KvHeader::Last {
            transfer,
            generation,
            tokens: 30,
            cached: 4,
            result: vec![9; 5],
            first: 7,
            checksums: Vec::new(),
            hashes: Vec::new(),
        },
        KvHeader::Credit { transfer, generation, pages: 12 },
        KvHeader::Ack { transfer, generation },
        KvHeader::Cancel { transfer, generation, why: "the client went away".to_owned() },
        KvHeader::Released { transfer, generation },
        KvHeader::Begun { transfer, generation },
        KvHeader::Open { transfer, generation, first_page: 3, window: 16 },
    ]
}

/// A message of each kind, those with pages with some.
fn messages() -> Vec<Outbound> {
    let mut number = 0;
    one_of_each()
        .into_iter()
        .map(|header| match header {
            KvHeader::Pages { .. } => pages_from(0, 3),
            KvHeader::Last { .. } => {
                number += 3;
                Outbound { header, pages: pages_from(number, 2).pages }
            }
            other => other.into(),
        })
        .collect()
}

pub(super) fn any_header() -> impl Strategy<Value = KvHeader> {
    let ids = any::<[u64; 2]>();
    let text = "[a-zü 0-9]{0,40}";
    let code = prop_oneof![
        Just(RefusalCode::Fingerprint),
        Just(RefusalCode::Unavailable),
        Just(RefusalCode::QueueFull),
        Just(RefusalCode::TooLong),
        Just(RefusalCode::Malformed),
        Just(RefusalCode::Failed),
        Just(RefusalCode::Expired),
    ];
    let lists = || (vec(any::<u64>(), 0..64), vec(any::<[u8; 16]>(), 0..64));
    prop_oneof![
        (
            ids,
            any::<[u8; 32]>(),
            any::<[u32; 7]>(),
            any::<[bool; 3]>(),
            vec(any::<u8>(), 0..300),
            any::<Option<u32>>(),
            proptest::option::of(("[a-z0-9.:]{0,40}", any::<u32>()))
        )
            .prop_map(
                |(
                    [transfer, generation],
                    fingerprint,
                    n,
                    [want_pages, reserved, held],
                    spec,
                    takes,
                    prefix,
                )| {
                    KvHeader::Ask {
                        transfer,
                        generation,
                        fingerprint,
                        layout: WireLayout {
                            page_tokens: n[0],
                            layers: n[1],
                            kv_heads: n[2],
                            head_dim: n[3],
                            element_bytes: n[4],
                        },
                        first_page: n[5],
                        want_pages,
                        reserved,
                        window: n[6],
                        spec,
                        takes,
                        held,
                        prefix: prefix.map(|(address, tokens)| WirePrefix { address, tokens }),
                    }
                }
            ),
        ids.prop_map(|[transfer, generation]| KvHeader::Accepted { transfer, generation }),
        (ids, code, text).prop_map(|([transfer, generation], code, why)| KvHeader::Refused {
            transfer,
            generation,
            code,
            why
        }),
        (ids, any::<u32>(), lists()).prop_map(|([transfer, generation], first, (checksums, hashes))| {
            KvHeader::Pages { transfer, generation, first, checksums, hashes }
        }),
        (ids, any::<[u32; 3]>(), vec(any::<u8>(), 0..300), lists()).prop_map(
            |([transfer, generation], n, result, (checksums, hashes))| KvHeader::Last {
                transfer,
                generation,
                tokens: n[0].max(n[1]),
                cached: n[0].min(n[1]),
                result,
                first: n[2],
                checksums,
                hashes,
            }
        ),
        (ids, any::<u32>()).prop_map(|([transfer, generation], pages)| KvHeader::Credit {
            transfer,
            generation,
            pages
        }),
        ids.prop_map(|[transfer, generation]| KvHeader::Ack { transfer, generation }),
        (ids, text).prop_map(|([transfer, generation], why)| KvHeader::Cancel { transfer, generation, why }),
        ids.prop_map(|[transfer, generation]| KvHeader::Released { transfer, generation }),
        ids.prop_map(|[transfer, generation]| KvHeader::Begun { transfer, generation }),
        (ids, any::<[u32; 2]>()).prop_map(|([transfer, generation], [first_page, window])| KvHeader::Open {
            transfer,
            generation,
            first_page,
            window
        }),
    ]
}

/// What an inbound message says, for comparison: its header without checksums, and its pages.
fn said(message: &Inbound) -> (KvHeader, Vec<Vec<u8>>) {
    let mut header = rkyv::deserialize::<KvHeader, rancor::Error>(message.header()).expect("a header");
    header.set_checksums(Vec::new());
    (header, message.pages().iter().map(|page| page.to_vec()).collect())
}

fn meant(message: &Outbound) -> (KvHeader, Vec<Vec<u8>>) {
    (message.header.clone(), message.pages.iter().map(|page| page.to_vec()).collect())
}

/// A link whose other ends are `reader` and `writer`.
fn link_of(
    reader: impl AsyncRead + Send + Unpin + 'static,
    writer: impl AsyncWrite + Send + Unpin + 'static,
    settings: Settings,
) -> (Box<dyn KvSend>, Box<dyn KvRecv>) {
    Box::new(TcpLink::of(Box::new(reader), Box::new(writer), peer("b"), settings)).split()
}

/// The bytes of `messages`, and where each begins.
async fn bytes_of(messages: &[Outbound]) -> (Vec<u8>, Vec<usize>) {
    let tape = Tape::default();
    let (mut send, _recv) = link_of(tokio::io::empty(), tape.clone(), settings());
    let mut starts = Vec::new();
    for message in messages {
        starts.push(tape.bytes().len());
        send.send(message.clone()).await.expect("sent");
    }
    (tape.bytes(), starts)
}

/// Keeps what is written, at most `step` bytes at a time where that is not 0, with a wait before each.
#[derive(Clone, Default)]
struct Tape {
    kept: Arc<Mutex<Vec<u8>>>,
    step: usize,
    rested: bool,
}

impl Tape {
    fn bytes(&self) -> Vec<u8> {
        self.kept.lock().expect("whole").clone()
    }
}

impl AsyncWrite for Tape {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let step = if self.step == 0 { usize::MAX } else { self.step };
        self.rested = !self.rested;
        if self.rested && step != usize::MAX {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let mut kept = self.kept.lock().expect("whole");
        let before = kept.len();
        for buf in bufs {
            let room = step - (kept.len() - before);
            kept.extend_from_slice(&buf[..buf.len().min(room)]);
        }
        Poll::Ready(Ok(kept.len() - before))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// What `future` gives at once, if it does.
fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut cx = Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut cx) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// All that a link makes of what `reader` gives, and how it ended.
async fn receive_all(
    reader: impl AsyncRead + Send + Unpin + 'static,
    settings: Settings,
) -> (Vec<Inbound>, Result<(), KvError>) {
    let (_send, mut recv) = link_of(reader, tokio::io::sink(), settings);
    let mut got = Vec::new();
    loop {
        match recv.recv().await {
            Ok(Some(message)) => got.push(message),
            Ok(None) => return (got, Ok(())),
            Err(error) => return (got, Err(error)),
        }
    }
}

/// Gives at most `step` bytes at a time, and makes the reader wait before each.
struct Dribble<R> {
    inner: R,
    step: usize,
    rested: bool,
}

impl<R> Dribble<R> {
    fn new(inner: R, step: usize) -> Self {
        Self { inner, step, rested: false }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Dribble<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.rested = !self.rested;
        if self.rested {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let mut part = vec![0; self.step.min(buf.remaining())];
        let mut part = ReadBuf::new(&mut part);
        let done = Pin::new(&mut self.inner).poll_read(cx, &mut part);
        buf.put_slice(part.filled());
        done
    }
}
