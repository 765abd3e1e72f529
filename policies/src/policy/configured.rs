//! Policies as the configuration describes them. The one place where they are made: at the start, at a reload, after a
//! panic and in the simulator.

use std::time::Duration;

use config::{Mode, PoliciesConfig};

use super::cache_aware::{CacheAware, CacheAwareOptions};
use super::session_affinity::{SessionAffinity, SessionAffinityOptions};
use super::{ClusterPolicy, PolicyConfig, PolicyMode};

/// The policy `name` with its configured options, and how the controller treats it. None where there is no such policy;
/// [`PoliciesConfig::NAMES`] are those that there are.
#[must_use]
pub fn configured(name: &str, options: &PoliciesConfig) -> Option<(PolicyConfig, Box<dyn ClusterPolicy>)> {
    let (mode, weight, policy): (Mode, f64, Box<dyn ClusterPolicy>) = match name {
        CacheAware::NAME => {
            let cache_aware = &options.cache_aware;
            let options = CacheAwareOptions {
                cache_threshold: cache_aware.cache_threshold,
                balance_abs_threshold: cache_aware.balance_abs_threshold,
                balance_rel_threshold: cache_aware.balance_rel_threshold,
                overload_token_usage: cache_aware.overload_token_usage,
                prefill_load_scale: cache_aware.prefill_load_scale,
                decode_load_scale: cache_aware.decode_load_scale,
            };
            (cache_aware.mode, cache_aware.weight, Box::new(CacheAware::new(options)))
        }
        SessionAffinity::NAME => {
            let session_affinity = &options.session_affinity;
            let options = SessionAffinityOptions {
                idle_timeout: Duration::from(session_affinity.idle_timeout).into(),
                max_sessions: session_affinity.max_sessions,
                load_factor: session_affinity.load_factor,
                min_requests: session_affinity.min_requests,
            };
            (session_affinity.mode, session_affinity.weight, Box::new(SessionAffinity::new(options)))
        }
        _ => return None,
    };
    let mode = match mode {
        Mode::Off => PolicyMode::Off,
        Mode::Shadow => PolicyMode::Shadow,
        Mode::Prod => PolicyMode::Prod,
    };
    Some((PolicyConfig { mode, weight, ..PolicyConfig::new(name.into()) }, policy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_configurable_policy_can_be_made() {
        for name in PoliciesConfig::NAMES {
            let (config, policy) = configured(name, &PoliciesConfig::default()).unwrap();
            assert_eq!((policy.name(), config), (name.into(), PolicyConfig::new(name.into())));
        }
        assert!(configured("cache_aware", &PoliciesConfig::default()).is_none());
    }

    #[test]
    fn configured_defaults_are_those_of_the_options() {
        let made = |name| format!("{:?}", configured(name, &PoliciesConfig::default()).unwrap().1);
        assert_eq!(made("cache-aware"), format!("{:?}", CacheAware::default()));
        let affinity = SessionAffinity::new(SessionAffinityOptions::default());
        assert_eq!(made("session-affinity"), format!("{affinity:?}"));
    }

    #[test]
    fn mode_and_weight_are_taken_over() {
        let mut options = PoliciesConfig::default();
        options.cache_aware.mode = Mode::Shadow;
        options.session_affinity.mode = Mode::Off;
        options.cache_aware.weight = 2.5;
        let treated = |name| configured(name, &options).map(|(c, _)| (c.mode, c.weight));
        assert_eq!(treated("cache-aware"), Some((PolicyMode::Shadow, 2.5)));
        assert_eq!(treated("session-affinity"), Some((PolicyMode::Off, 1.0)));
    }
}
