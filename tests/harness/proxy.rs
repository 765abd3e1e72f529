//! A TCP proxy between nodes that the test cuts, freezes and heals.
//!
//! It stands before one node: it listens on `127.0.0.1:P` and leads to `127.0.0.2:P`, where that node listens. The node
//! advertises the proxy's address. Which links pass it depends on who dialled what, because a node's own dials do not
//! pass the proxy before itself: see [`super::cluster`].

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// A proxy before one node; ends when dropped.
pub(crate) struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    mode: Mode,
    delay: Duration,
    /// Both ends of every connection.
    connections: Vec<[TcpStream; 2]>,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Mode {
    #[default]
    Forward,
    /// Connections end, new ones at once.
    Cut,
    /// A black hole: whatever was or is sent waits, ends of connections too.
    Frozen,
    /// The test is over.
    Closed,
}

impl Proxy {
    /// A proxy that forwards, on a port of its own.
    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared::default());
        let served = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if served.mode() == Mode::Closed {
                    return;
                }
                let served = served.clone();
                std::thread::spawn(move || served.carry(stream, port));
            }
        });
        Self { port, shared }
    }

    /// `HOST:PORT` of the proxy.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// `HOST:PORT` that it leads to. The port is free there: on the proxy's own address the proxy has it.
    pub(crate) fn target(&self) -> String {
        format!("127.0.0.2:{}", self.port)
    }

    /// Ends all connections, and new ones as soon as they are made, as a firewall that rejects.
    pub(crate) fn cut(&self) {
        self.shared.set(Mode::Cut);
    }

    /// Becomes a black hole: connections stay open or are even accepted, nothing passes, not even their end.
    pub(crate) fn freeze(&self) {
        self.shared.set(Mode::Frozen);
    }

    /// Forwards again; what waited in a black hole goes on its way, as TCP would send it again.
    pub(crate) fn heal(&self) {
        self.shared.set(Mode::Forward);
    }

    /// Holds each piece of data back for so long in each direction.
    pub(crate) fn delay(&self, delay: Duration) {
        self.shared.state.lock().unwrap().delay = delay;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.set(Mode::Closed);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address());
    }
}

impl Shared {
    fn mode(&self) -> Mode {
        self.state.lock().unwrap().mode
    }

    fn set(&self, mode: Mode) {
        let mut state = self.state.lock().unwrap();
        state.mode = mode;
        if matches!(mode, Mode::Cut | Mode::Closed) {
            for end in state.connections.drain(..).flatten() {
                // It may have ended already.
                let _ = end.shutdown(Shutdown::Both);
            }
        }
        self.changed.notify_all();
    }

    /// Waits while the proxy is a black hole; gives whether it forwards then, and the delay.
    fn passes(&self) -> Option<Duration> {
        let state = self.state.lock().unwrap();
        let state = self.changed.wait_while(state, |state| state.mode == Mode::Frozen).unwrap();
        (state.mode == Mode::Forward).then_some(state.delay)
    }

    fn carry(self: Arc<Self>, from: TcpStream, port: u16) {
        if self.passes().is_none() {
            return;
        }
        let Ok(to) = TcpStream::connect(("127.0.0.2", port)) else { return };
        for end in [&from, &to] {
            end.set_nodelay(true).unwrap();
        }
        let clone = |end: &TcpStream| end.try_clone().unwrap();
        let (back_from, back_to) = (clone(&to), clone(&from));
        {
            let mut state = self.state.lock().unwrap();
            if matches!(state.mode, Mode::Cut | Mode::Closed) {
                return;
            }
            state.connections.push([clone(&from), clone(&to)]);
        }
        let other = self.clone();
        let back = std::thread::spawn(move || other.pump(back_from, back_to));
        self.pump(from, to);
        back.join().unwrap();
    }

    /// One direction of a connection, to its end; an end passes on like data.
    fn pump(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut buffer = vec![0; 1 << 16];
        loop {
            let read = from.read(&mut buffer).unwrap_or(0);
            let Some(delay) = self.passes() else { break };
            wait(delay);
            if read == 0 || to.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
        // Either may have ended already.
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    }
}

fn wait(delay: Duration) {
    let end = std::time::Instant::now() + delay;
    while let Some(left) =
        end.checked_duration_since(std::time::Instant::now()).filter(|left| !left.is_zero())
    {
        std::thread::park_timeout(left);
    }
}
