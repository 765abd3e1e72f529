//! JSON that people can read too: objects have a line for each key, lists of numbers have one line.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

pub(crate) fn pretty(value: &impl Serialize) -> Result<String, serde_json::Error> {
    let mut out = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut out, Lines::default()))?;
    String::from_utf8(out).map_err(|e| serde_json::Error::io(io::Error::other(e)))
}

#[derive(Default)]
struct Lines {
    depth: usize,
    /// Whether the object just begun has a key.
    filled: bool,
}

impl Lines {
    fn line<W: ?Sized + Write>(&self, out: &mut W) -> io::Result<()> {
        write!(out, "\n{:1$}", "", 2 * self.depth)
    }
}

impl Formatter for Lines {
    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        (self.depth, self.filled) = (self.depth + 1, false);
        out.write_all(b"{")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if !first {
            out.write_all(b",")?;
        }
        self.filled = true;
        self.line(out)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.depth -= 1;
        if self.filled {
            self.line(out)?;
        }
        self.filled = true;
        out.write_all(b"}")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn it_is_json_and_lists_have_one_line() {
        let value = json!({"a": [1, 2.5, []], "b": {}, "c": {"d": [{"e": null}, {"f": "\n\"", "g": {}}]}});
        let text = pretty(&value).unwrap();
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
        assert_eq!(
            text,
            "{\n  \"a\": [1, 2.5, []],\n  \"b\": {},\n  \"c\": {\n    \"d\": [{\n      \"e\": null\n    }, {\n      \
             \"f\": \"\\n\\\"\",\n      \"g\": {}\n    }]\n  }\n}"
        );
    }
}
