//! The command line and the configuration, as a user meets them: exit codes, messages, dumps, models, simulations.

mod calibrate;
mod models;
mod settings;
mod sim;

use std::process::Output;

use crate::harness::node::binary;

/// What a finished command said.
#[derive(Debug)]
struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        let said = Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) };
        for word in ["panicked", "RUST_BACKTRACE"] {
            assert!(!said.err.contains(word), "{said:?}");
        }
        said
    }
}

/// Runs the binary to its end.
fn run(args: &[&str], variables: &[(&str, &str)]) -> Said {
    binary().args(args).envs(variables.iter().copied()).output().expect("actor-node runs").into()
}

/// Runs the binary, which has to succeed; gives its output.
fn ok(args: &[&str], variables: &[(&str, &str)]) -> String {
    let said = run(args, variables);
    assert_eq!(said.code, Some(0), "{said:?}");
    said.out
}
