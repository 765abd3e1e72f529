//! `actor-node sim` without the rest of the binary: builds in a minute where the engine takes half an hour.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser;
use config::SimArgs;

/// The command line of `actor-node sim`.
#[derive(Debug, Parser)]
#[command(name = "simulate")]
struct Simulate {
    #[command(flatten)]
    args: SimArgs,
}

fn main() -> ExitCode {
    let printed = match sim::run_cli(&Simulate::parse().args) {
        Ok(text) => writeln!(std::io::stdout(), "{}", text.trim_end()).is_ok(),
        Err(error) => {
            // Nothing is left to tell it to when standard error is gone.
            let _ = writeln!(std::io::stderr(), "error: {error}");
            false
        }
    };
    if printed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
