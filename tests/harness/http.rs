//! A small blocking HTTP client over `reqwest`, and raw sockets for what a well-behaved client cannot do.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

use super::DEADLINE;

/// A client of one node.
#[derive(Clone)]
pub(crate) struct Client {
    base: String,
    http: reqwest::blocking::Client,
}

/// A whole response.
#[derive(Debug)]
pub(crate) struct Response {
    /// Status code.
    pub(crate) status: u16,
    /// Headers.
    pub(crate) headers: reqwest::header::HeaderMap,
    body: Vec<u8>,
}

impl Response {
    /// The body as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("the body is UTF-8")
    }

    /// The body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e} in {}", self.text()))
    }

    /// A header as text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Asserts OpenAI's error shape with this status and gives the error object.
    pub(crate) fn error(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        assert_eq!(self.header("content-type"), Some("application/json"), "{}", self.text());
        let error = self.json()["error"].clone();
        for key in ["message", "type"] {
            assert!(error[key].is_string(), "{key} is missing in {error}");
        }
        for key in ["param", "code"] {
            assert!(error.get(key).is_some(), "{key} is missing in {error}");
        }
        error
    }
}

impl Client {
    /// A client of the node at `base`.
    pub(crate) fn new(base: &str) -> Self {
        let http = reqwest::blocking::Client::builder().timeout(DEADLINE).no_proxy().build().unwrap();
        Self { base: base.to_owned(), http }
    }

    /// GET.
    pub(crate) fn get(&self, path: &str) -> reqwest::Result<Response> {
        Self::whole(self.http.get(format!("{}{path}", self.base)).send()?)
    }

    /// Any method, headers and body.
    pub(crate) fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> Response {
        let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
        let mut request = self.http.request(method, format!("{}{path}", self.base)).body(body);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Self::whole(request.send().unwrap()).unwrap()
    }

    /// POST of JSON.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Response {
        self.send("POST", path, &[("content-type", "application/json")], body.to_string().into_bytes())
    }

    /// POST of JSON that is answered 200; gives the body.
    pub(crate) fn ok(&self, path: &str, body: &Value) -> Value {
        let response = self.post(path, body);
        assert_eq!(response.status, 200, "{}", response.text());
        response.json()
    }

    /// POST of a streaming request: all events up to `[DONE]`, which has to be the last line.
    pub(crate) fn stream(&self, path: &str, body: &Value) -> Vec<Value> {
        let mut body = body.clone();
        body["stream"] = true.into();
        let response = self.post(path, &body);
        assert_eq!(response.status, 200, "{}", response.text());
        assert!(response.header("content-type").unwrap().starts_with("text/event-stream"));
        events(&response.text())
    }

    fn whole(response: reqwest::blocking::Response) -> reqwest::Result<Response> {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Ok(Response { status, headers, body: response.bytes()?.to_vec() })
    }
}

/// A stream of any kind as one: every choice's text, finish reason and role, and the usage chunk.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Streamed {
    /// By choice.
    pub(crate) choices: Vec<Choice>,
    /// Of the usage chunk, if there was one.
    pub(crate) usage: Option<Value>,
}

/// One choice of a stream or of a whole answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Choice {
    /// The whole text.
    pub(crate) text: String,
    /// Why it ended.
    pub(crate) finish: String,
}

/// Joins the events of a stream; checks what holds for every stream (ids, one finish a choice, nothing after it).
pub(crate) fn join(events: &[Value]) -> Streamed {
    let mut all = Streamed::default();
    for event in events {
        assert!(event.get("error").is_none(), "{event}");
        for key in ["id", "object", "created", "model"] {
            assert_eq!(event[key], events[0][key], "{key} changes in the stream: {event}");
        }
        let choices = event["choices"].as_array().expect("choices");
        if choices.is_empty() {
            assert!(all.usage.is_none(), "two usage chunks");
            all.usage = Some(event["usage"].clone());
            continue;
        }
        assert!(all.usage.is_none(), "a chunk after the usage chunk: {event}");
        assert!(event["usage"].is_null(), "usage in a chunk with choices: {event}");
        for choice in choices {
            let index = usize::try_from(choice["index"].as_u64().unwrap()).unwrap();
            if all.choices.len() <= index {
                all.choices.resize(index + 1, Choice::default());
            }
            let joined = &mut all.choices[index];
            assert_eq!(joined.finish, "", "a chunk after the choice's end: {event}");
            if let Some(text) = choice["text"].as_str().or_else(|| choice["delta"]["content"].as_str()) {
                joined.text.push_str(text);
            }
            match &choice["finish_reason"] {
                Value::Null => {}
                Value::String(reason) => joined.finish.clone_from(reason),
                other => panic!("finish_reason {other}"),
            }
        }
    }
    for choice in &all.choices {
        assert_ne!(choice.finish, "", "a choice without an end: {events:?}");
    }
    all
}

/// The choices of a whole answer, in order.
pub(crate) fn choices(answer: &Value) -> Vec<Choice> {
    let choices = answer["choices"].as_array().expect("choices");
    let one = |(i, choice): (usize, &Value)| {
        assert_eq!(choice["index"], i);
        let text = choice["text"].as_str().or_else(|| choice["message"]["content"].as_str()).expect("text");
        let finish = choice["finish_reason"].as_str().expect("finish_reason");
        Choice { text: text.to_owned(), finish: finish.to_owned() }
    };
    choices.iter().enumerate().map(one).collect()
}

/// The only choice of a whole answer.
pub(crate) fn only(answer: &Value) -> Choice {
    let mut choices = choices(answer);
    assert_eq!(choices.len(), 1, "{answer}");
    choices.remove(0)
}

/// The events of a complete SSE body.
pub(crate) fn events(text: &str) -> Vec<Value> {
    let mut lines: Vec<&str> = text.lines().filter(|l| !l.is_empty()).collect();
    assert_eq!(lines.pop(), Some("data: [DONE]"), "the stream does not end with [DONE]: {text}");
    lines
        .into_iter()
        .map(|line| serde_json::from_str(line.strip_prefix("data: ").expect("an event")).expect("JSON"))
        .collect()
}

/// Text of one choice of a completion stream (`text`) or chat stream (`delta.content`).
pub(crate) fn text_of(events: &[Value], index: u64) -> String {
    events
        .iter()
        .flat_map(|e| e["choices"].as_array().into_iter().flatten())
        .filter(|c| c["index"] == index)
        .filter_map(|c| c["text"].as_str().or_else(|| c["delta"]["content"].as_str()))
        .collect()
}

/// A raw connection that has sent a POST and reads the answer line by line.
pub(crate) struct Raw {
    reader: BufReader<TcpStream>,
}

impl Raw {
    /// Sends a POST of JSON to the node at `base` and reads nothing yet.
    pub(crate) fn post(base: &str, path: &str, body: &Value) -> Self {
        Self::post_with(base, path, body, &[])
    }

    /// As [`Raw::post`], with more headers.
    pub(crate) fn post_with(base: &str, path: &str, body: &Value, headers: &[(&str, &str)]) -> Self {
        let body = body.to_string();
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let mut stream = TcpStream::connect(base.strip_prefix("http://").unwrap()).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n{headers}content-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        Self { reader: BufReader::new(stream) }
    }

    /// Reads the head of the answer: its status, and its headers as lines in lower case.
    pub(crate) fn head(&mut self) -> (u16, Vec<String>) {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            assert_ne!(self.reader.read_line(&mut line).unwrap(), 0, "the answer ended after {lines:?}");
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            lines.push(line);
        }
        let status = lines[0].split(' ').nth(1).unwrap_or_else(|| panic!("no status in {lines:?}"));
        (status.parse().unwrap(), lines)
    }

    /// Reads until `count` SSE data lines have come.
    pub(crate) fn read_events(&mut self, count: usize) -> Vec<String> {
        let mut seen = Vec::new();
        let mut line = String::new();
        while seen.len() < count {
            line.clear();
            assert_ne!(self.reader.read_line(&mut line).unwrap(), 0, "the stream ended after {seen:?}");
            if let Some(data) = line.trim_end().strip_prefix("data: ") {
                seen.push(data.to_owned());
            }
        }
        seen
    }

    /// Sends any bytes and reads nothing yet. The other side may answer before it has read all of them and, after a while,
    /// close; then the rest is not sent.
    pub(crate) fn bytes(base: &str, parts: &[&[u8]]) -> Self {
        let mut stream = TcpStream::connect(base.strip_prefix("http://").unwrap()).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        for part in parts {
            if stream.write_all(part).is_err() {
                break;
            }
        }
        Self { reader: BufReader::new(stream) }
    }

    /// Reads one response with a length: its status and its body.
    pub(crate) fn response(mut self) -> (u16, Value) {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        let status =
            line.split(' ').nth(1).unwrap_or_else(|| panic!("no status in {line:?}")).parse().unwrap();
        let mut length = 0;
        loop {
            line.clear();
            self.reader.read_line(&mut line).unwrap();
            let header = line.trim_end().to_ascii_lowercase();
            if header.is_empty() {
                break;
            }
            if let Some(value) = header.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        self.reader.read_exact(&mut body).unwrap();
        (
            status,
            serde_json::from_slice(&body)
                .unwrap_or_else(|e| panic!("{e} in {}", String::from_utf8_lossy(&body))),
        )
    }

    /// Reads to the end of the connection or of the body: the data lines that are left, the last one `[DONE]`.
    pub(crate) fn remaining(mut self) -> Vec<String> {
        let mut seen = Vec::new();
        let mut line = String::new();
        loop {
            line.clear();
            let read = self.reader.read_line(&mut line).unwrap();
            if let Some(data) = line.trim_end().strip_prefix("data: ") {
                seen.push(data.to_owned());
            }
            if read == 0 || line.trim_end() == "data: [DONE]" {
                return seen;
            }
        }
    }

    /// Reads whatever comes until the connection ends or `limit` passes.
    pub(crate) fn rest(mut self, limit: Duration) -> String {
        self.reader.get_ref().set_read_timeout(Some(limit)).unwrap();
        let mut all = Vec::new();
        // A time-out is an answer too: what came until then.
        let _ = self.reader.read_to_end(&mut all);
        String::from_utf8_lossy(&all).into_owned()
    }
}
