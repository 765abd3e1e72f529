//! The policies of a worker as the configuration describes them. The one place where they are made: at the start, at a
//! reload, after a panic and in the simulator.

use config::{
    DeadlineConfig, FairConfig, KeepSessionConfig, OffloadConfig, PriorityConfig, WorkerPoliciesConfig,
};

use super::WorkerPolicy;
use super::deadline::{Deadline, DeadlineOptions};
use super::fair::{Fair, FairOptions};
use super::keep_session::{self, KeepOptions};
use super::offload::{self, OffloadOptions};
use super::priority::{Priority, PriorityOptions};
use crate::time::Span;

/// The ordering policy `name` with its configured options; none where it orders nothing (`fcfs`, `keep-session`,
/// `offload`).
#[must_use]
pub fn ordering(name: &str, options: &WorkerPoliciesConfig) -> Option<Box<dyn WorkerPolicy>> {
    match name {
        Fair::NAME => Some(Box::new(Fair::new((&options.fair).into()))),
        Priority::NAME => Some(Box::new(Priority::new((&options.priority).into()))),
        Deadline::NAME => Some(Box::new(Deadline::new((&options.deadline).into()))),
        _ => None,
    }
}

/// What is kept between the turns of a conversation, where `runtime.worker-policy` lists `keep-session`.
#[must_use]
pub fn keeping(list: &[String], options: &WorkerPoliciesConfig) -> Option<KeepOptions> {
    list.iter().any(|name| name == keep_session::NAME).then(|| (&options.keep_session).into())
}

/// Which prompts other workers compute, where `runtime.worker-policy` lists `offload`; `step_tokens` are those of a step.
#[must_use]
pub fn offloading(
    list: &[String],
    options: &WorkerPoliciesConfig,
    step_tokens: usize,
) -> Option<OffloadOptions> {
    let listed = list.iter().any(|name| name == offload::NAME);
    listed.then(|| offload_options(&options.offload, step_tokens))
}

fn offload_options(config: &OffloadConfig, step_tokens: usize) -> OffloadOptions {
    OffloadOptions {
        peers: config.peers.clone(),
        min_suffix: config.min_suffix,
        busy_tokens: config.busy_tokens.unwrap_or(2 * step_tokens as u64),
        max_outstanding: config.max_outstanding,
    }
}

impl From<&FairConfig> for FairOptions {
    fn from(config: &FairConfig) -> Self {
        Self { input_weight: config.input_weight, output_weight: config.output_weight }
    }
}

impl From<&PriorityConfig> for PriorityOptions {
    fn from(config: &PriorityConfig) -> Self {
        let age_every = Span::from(config.age_every.get());
        Self { default: config.default, preempt: config.preempt, age_every }
    }
}

impl From<&DeadlineConfig> for DeadlineOptions {
    fn from(config: &DeadlineConfig) -> Self {
        Self { refuse_hopeless: config.refuse_hopeless }
    }
}

impl From<&KeepSessionConfig> for KeepOptions {
    fn from(config: &KeepSessionConfig) -> Self {
        Self { max_keep: Span::from(config.max_keep.get()), max_share: config.max_share }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_configurable_policy_can_be_made() {
        let options = WorkerPoliciesConfig::default();
        for name in WorkerPoliciesConfig::ORDERING {
            let made = ordering(name, &options);
            assert_eq!(made.is_none(), name == "fcfs", "{name}");
            assert!(made.is_none_or(|policy| policy.name().as_str() == name));
        }
        assert!(keeping(&["fcfs".to_owned()], &options).is_none());
        assert!(offloading(&["keep-session".to_owned()], &options, 512).is_none());
        let offload = offloading(&["fair".to_owned(), "offload".to_owned()], &options, 512).unwrap();
        assert_eq!((offload.min_suffix, offload.busy_tokens, offload.max_outstanding), (512, 1024, 4));
        assert!(offload.peers.is_empty());
        assert_eq!(
            keeping(&["fair".to_owned(), "keep-session".to_owned()], &options),
            Some(KeepOptions::default())
        );
    }

    #[test]
    fn configured_defaults_are_those_of_the_options() {
        let options = WorkerPoliciesConfig::default();
        assert_eq!(FairOptions::from(&options.fair), FairOptions::default());
        assert_eq!(PriorityOptions::from(&options.priority), PriorityOptions::default());
        assert_eq!(DeadlineOptions::from(&options.deadline), DeadlineOptions::default());
    }
}
