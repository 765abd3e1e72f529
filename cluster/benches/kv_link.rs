//! How fast pages travel: a KV link over loopback against a plain TCP copy of the same pages, and the link within a process
//! against a memory copy. The sides alternate; times are medians of the rounds, ratios the median of the rounds' ratios.
//!
//!     cargo bench -p cluster --bench kv_link
#![expect(clippy::print_stdout, reason = "the figures are what this prints")]

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc as threads;
use std::time::{Duration, Instant};

use cluster::cookie::Cookie;
use cluster::kv::{
    CheckedHeader, KvEvent, KvHeader, KvLink, KvListener, KvPeer, KvRecv, KvSend, KvTerms, MAX_PAGES,
    Outbound, PageBuf, PagePool, dial, local,
};
use config::ids::WorkerId;
use policies::kv::PageLayout;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Pages of SmolLM2-135M in f16: 368,640 bytes.
const LAYOUT: PageLayout =
    PageLayout { page_tokens: 16, layers: 30, kv_heads: 3, head_dim: 64, element_bytes: 2 };

/// Pages that the sender has: more than the caches near a core hold.
const SOURCE: usize = 64;

/// Pages a message; the plain sides write into as many buffers in turn.
const MESSAGES: [usize; 2] = [8, 32];

const TOTALS_MB: [usize; 5] = [1, 4, 16, 64, 256];

fn main() {
    let runtime = Runtime::new().expect("a runtime");
    let source: Arc<[PageBuf]> = pages().into();
    println!("page {} bytes, {} pages at the source", LAYOUT.page_bytes(), SOURCE);
    parts(&source);
    for message in MESSAGES {
        println!("\n{message} pages a message: GB/s, and the link's share of the other's speed");
        println!("| MB | TCP link | plain TCP | ratio | in process | memory copy | ratio |");
        println!("|---|---|---|---|---|---|---|");
        let tcp = Sides::tcp(&runtime, &source, message);
        let local = Sides::local(&runtime, &source, message);
        for total in TOTALS_MB {
            let pages = (total * 1_000_000 / LAYOUT.page_bytes()).max(1);
            let rounds = if total > 64 { 9 } else { 25 };
            let (tcp, local) = (tcp.measure(pages, rounds), local.measure(pages, rounds));
            println!(
                "| {total} | {:.2} | {:.2} | {:.2} | {:.0} | {:.1} | {:.0} |",
                tcp.0, tcp.1, tcp.2, local.0, local.1, local.2
            );
        }
    }
}

fn pages() -> Vec<PageBuf> {
    let pool = PagePool::new(LAYOUT.page_bytes(), SOURCE, SOURCE);
    (0..SOURCE)
        .map(|number| {
            let mut page = pool.try_take().expect("room");
            for (i, byte) in page.iter_mut().enumerate() {
                *byte = (i * 31 + number * 7 + (i >> 9)) as u8;
            }
            page.freeze()
        })
        .collect()
}

/// What a page and a header cost at either end.
fn parts(source: &[PageBuf]) {
    let begun = Instant::now();
    for _ in 0..4 {
        for page in source {
            black_box(xxhash_rust::xxh3::xxh3_64(black_box(page)));
        }
    }
    let each = begun.elapsed().as_secs_f64() / (4 * source.len()) as f64;
    println!("checksum of a page: {:.1} µs, {:.1} GB/s", each * 1e6, LAYOUT.page_bytes() as f64 / each / 1e9);
    let longest = header(MAX_PAGES, MAX_PAGES);
    let begun = Instant::now();
    for _ in 0..1000 {
        black_box(CheckedHeader::encode(black_box(longest.clone()))).expect("encoded");
    }
    println!("encoding the header of {MAX_PAGES} pages: {:.2} µs", begun.elapsed().as_secs_f64() * 1e3);
    let checked = CheckedHeader::encode(longest).expect("encoded");
    let begun = Instant::now();
    for _ in 0..1000 {
        black_box(black_box(&checked).read());
    }
    println!("checking and reading it: {:.2} µs", begun.elapsed().as_secs_f64() * 1e3);
}

fn header(pages: usize, sums: usize) -> KvHeader {
    KvHeader::Pages {
        transfer: 1,
        generation: 1,
        first: 0,
        checksums: vec![0; sums],
        hashes: vec![[0; 16]; pages],
    }
}

/// Sends and receives so many pages, and says how long it took.
type Side = Box<dyn Fn(usize) -> Duration>;

/// Ours and the other.
struct Sides(Side, Side);

impl Sides {
    fn tcp(runtime: &Runtime, source: &Arc<[PageBuf]>, message: usize) -> Self {
        let (near, far) = runtime.block_on(linked());
        Self(link(runtime, near, far, source.clone(), message), plain(source.clone(), message))
    }

    fn local(runtime: &Runtime, source: &Arc<[PageBuf]>, message: usize) -> Self {
        let (near, far) = local::pair(peer("a"), peer("b"), LAYOUT, 8);
        let ours = link(runtime, Box::new(near), Box::new(far), source.clone(), message);
        Self(ours, copy(source.clone(), message))
    }

    /// GB/s of both, and the ratio.
    fn measure(&self, pages: usize, rounds: usize) -> (f64, f64, f64) {
        let bytes = (pages * LAYOUT.page_bytes()) as f64;
        let mut speeds = (Vec::new(), Vec::new(), Vec::new());
        self.0(pages);
        self.1(pages);
        for round in 0..rounds {
            let (ours, other) = if round % 2 == 0 {
                let ours = self.0(pages);
                (ours, self.1(pages))
            } else {
                let other = self.1(pages);
                (self.0(pages), other)
            };
            let (ours, other) = (bytes / ours.as_secs_f64() / 1e9, bytes / other.as_secs_f64() / 1e9);
            speeds.0.push(ours);
            speeds.1.push(other);
            speeds.2.push(ours / other);
        }
        (median(speeds.0), median(speeds.1), median(speeds.2))
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn peer(name: &str) -> KvPeer {
    KvPeer { worker: WorkerId::new(name.into(), 1), address: "127.0.0.1:0".to_owned() }
}

async fn linked() -> (Box<dyn KvLink>, Box<dyn KvLink>) {
    let (cookie, _) = Cookie::load(None, Some("bench"), None, true).expect("a cookie");
    let terms = |name| KvTerms::new(peer(name), &cookie, None, LAYOUT, 2 * MAX_PAGES);
    let listener = KvListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().to_string();
    let (to, mut events) = mpsc::channel(1);
    let mut work = JoinSet::new();
    work.spawn(listener.run(terms("b"), to));
    let near = dial(&address, &terms("a"), None).await.expect("linked");
    match events.recv().await {
        Some(KvEvent::Link(far)) => (Box::new(near), far),
        other => panic!("{other:?}"),
    }
}

/// A link whose ends are each at work in a task of their own.
fn link(
    runtime: &Runtime,
    near: Box<dyn KvLink>,
    far: Box<dyn KvLink>,
    source: Arc<[PageBuf]>,
    message: usize,
) -> Side {
    let (mut send, near_recv): (Box<dyn KvSend>, Box<dyn KvRecv>) = near.split();
    let (far_send, mut recv) = far.split();
    let (go_send, mut sends) = mpsc::channel::<usize>(1);
    let (go_recv, mut receives) = mpsc::channel::<usize>(1);
    let (done, ended) = threads::channel();
    let mut tasks = JoinSet::new();
    let _guard = runtime.enter();
    tasks.spawn(async move {
        while let Some(pages) = sends.recv().await {
            for first in (0..pages).step_by(message) {
                let pages: Vec<PageBuf> =
                    (first..pages.min(first + message)).map(|n| source[n % SOURCE].clone()).collect();
                let message = Outbound { header: header(pages.len(), 0), pages };
                send.send(message).await.expect("sent");
            }
        }
    });
    tasks.spawn(async move {
        while let Some(pages) = receives.recv().await {
            let mut got = 0;
            while got < pages {
                got += recv.recv().await.expect("received").expect("a message").pages().len();
            }
            done.send(Instant::now()).expect("waited for");
        }
    });
    Box::new(move |pages| {
        let _held = (&tasks, &near_recv, &far_send);
        go_recv.blocking_send(pages).expect("at work");
        let begun = Instant::now();
        go_send.blocking_send(pages).expect("at work");
        ended.recv().expect("at work").duration_since(begun)
    })
}

/// The same pages over a plain connection, between two threads.
fn plain(source: Arc<[PageBuf]>, buffers: usize) -> Side {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let mut near = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    let (mut far, _) = listener.accept().expect("accepted");
    near.set_nodelay(true).expect("set");
    let (go_send, sends) = threads::channel::<usize>();
    let (go_recv, receives) = threads::channel::<usize>();
    let (done, ended) = threads::channel();
    std::thread::spawn(move || {
        for pages in sends {
            for n in 0..pages {
                near.write_all(&source[n % SOURCE]).expect("written");
            }
        }
    });
    std::thread::spawn(move || {
        let mut into = vec![vec![0; LAYOUT.page_bytes()]; buffers];
        for pages in receives {
            for n in 0..pages {
                far.read_exact(&mut into[n % buffers]).expect("read");
            }
            black_box(&into);
            done.send(Instant::now()).expect("waited for");
        }
    });
    Box::new(move |pages| {
        go_recv.send(pages).expect("at work");
        let begun = Instant::now();
        go_send.send(pages).expect("at work");
        ended.recv().expect("at work").duration_since(begun)
    })
}

/// The same pages copied in memory, in a thread.
fn copy(source: Arc<[PageBuf]>, buffers: usize) -> Side {
    let (go, copies) = threads::channel::<usize>();
    let (done, ended) = threads::channel();
    std::thread::spawn(move || {
        let mut into = vec![vec![0; LAYOUT.page_bytes()]; buffers];
        for pages in copies {
            for n in 0..pages {
                black_box(&mut into[n % buffers]).copy_from_slice(&source[n % SOURCE]);
            }
            done.send(Instant::now()).expect("waited for");
        }
    });
    Box::new(move |pages| {
        let begun = Instant::now();
        go.send(pages).expect("at work");
        ended.recv().expect("at work").duration_since(begun)
    })
}
