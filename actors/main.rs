//! The binary: arguments → configuration → logs → node.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use actors::{calibrate, gateway, models, node, status, telemetry};
use anyhow::{Context, Result};
use config::{Cli, Command, Config, Environment};

/// A gateway makes and drops many small things a token.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Exit code for a wrong command line or configuration.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let cli = match Cli::parse_from_args(std::env::args_os(), env!("CARGO_PKG_VERSION")) {
        Ok(cli) => cli,
        Err(exit) => {
            print(exit.code == 0, exit.text.trim_end());
            return ExitCode::from(exit.code);
        }
    };
    let environment = Environment::of_process();
    let config = match config::load(&cli.overrides, &environment) {
        Ok(config) => config,
        Err(e) => {
            print(false, &format!("error: {e}"));
            return ExitCode::from(USAGE);
        }
    };
    match run(&cli, config, &environment) {
        Ok(code) => code,
        Err(e) => {
            print(false, &format!("error: {e:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli, config: Config, environment: &Environment) -> Result<ExitCode> {
    if cli.overrides.dump_config {
        print(true, config.to_toml().context("cannot print the configuration")?.trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(Command::Sim(args)) = &cli.command {
        // What its errors say has their causes in it.
        let said = sim::run_cli(args).map_err(|e| anyhow::anyhow!("{e}"))?;
        print(true, said.trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    if let Err(e) = telemetry::start_logs(&config.log) {
        print(false, &format!("error: {e:#}"));
        return Ok(ExitCode::from(USAGE));
    }
    if let Some(Command::Model { action }) = &cli.command {
        print(true, models::run(action, &config)?.trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(Command::Calibrate(args)) = &cli.command {
        print(true, calibrate::run(args, &config)?.trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(Command::Auth { action }) = &cli.command {
        print(true, gateway::auth::run(action, std::io::stdin())?.trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start tokio")?;
    if let Some(Command::Status(args)) = &cli.command {
        runtime.block_on(status::run(args, &config))?;
        return Ok(ExitCode::SUCCESS);
    }
    let metrics = telemetry::start_metrics()?;
    let code =
        runtime.block_on(node::run(Arc::new(config), cli.overrides.clone(), environment.clone(), metrics))?;
    // Whatever still blocks (a model being loaded, an engine in a long step) must not hold up the exit.
    runtime.shutdown_background();
    Ok(code)
}

/// The one place that writes for the person (or script) that started the process; logs go through `tracing`. Where the
/// reader is gone (`actor-node --dump-config | head`) there is nobody to tell.
fn print(to_stdout: bool, text: &str) {
    if text.is_empty() {
        return;
    }
    let _ =
        if to_stdout { writeln!(std::io::stdout(), "{text}") } else { writeln!(std::io::stderr(), "{text}") };
}
