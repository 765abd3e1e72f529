//! Policies as the configuration describes them. The one place where they are made: at the start, at a reload, after a
//! panic and in the simulator.

use config::PoliciesConfig;

use super::cache_aware::CacheAware;
use super::disaggregate::Disaggregate;
use super::pool_replicate::PoolReplicate;
use super::replicate::Replicate;
use super::session_affinity::SessionAffinity;
use super::{ClusterPolicy, PolicyConfig, PolicyMode};

/// The policy `name` with its configured options, and how the controller treats it. None where there is no such policy;
/// [`PoliciesConfig::NAMES`] are those that there are.
#[must_use]
pub fn configured(name: &str, options: &PoliciesConfig) -> Option<(PolicyConfig, Box<dyn ClusterPolicy>)> {
    let (mode, weight, policy): (PolicyMode, f64, Box<dyn ClusterPolicy>) = match name {
        CacheAware::NAME => {
            let table = &options.cache_aware;
            (table.mode, table.weight, Box::new(CacheAware::new(table.into())))
        }
        SessionAffinity::NAME => {
            let table = &options.session_affinity;
            (table.mode, table.weight, Box::new(SessionAffinity::new(table.into())))
        }
        Disaggregate::NAME => {
            let table = &options.disaggregate;
            // It has no costs that could be weighed.
            (table.mode, 1.0, Box::new(Disaggregate::new(table.into())))
        }
        Replicate::NAME => {
            let table = &options.replicate;
            // As above.
            (table.mode, 1.0, Box::new(Replicate::new(table.into())))
        }
        PoolReplicate::NAME => {
            let table = &options.pool_replicate;
            // As above.
            (table.mode, 1.0, Box::new(PoolReplicate::new(table.into())))
        }
        _ => return None,
    };
    Some((PolicyConfig { mode, weight, ..PolicyConfig::new(name.into()) }, policy))
}

#[cfg(test)]
mod tests {
    use super::super::session_affinity::SessionAffinityOptions;
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
        assert_eq!(made("disaggregate"), format!("{:?}", Disaggregate::default()));
        assert_eq!(made("replicate"), format!("{:?}", Replicate::default()));
        assert_eq!(made("pool-replicate"), format!("{:?}", PoolReplicate::default()));
    }

    #[test]
    fn mode_and_weight_are_taken_over() {
        let mut options = PoliciesConfig::default();
        options.cache_aware.mode = PolicyMode::Shadow;
        options.session_affinity.mode = PolicyMode::Off;
        options.cache_aware.weight = 2.5;
        let treated = |name| configured(name, &options).map(|(c, _)| (c.mode, c.weight));
        assert_eq!(treated("cache-aware"), Some((PolicyMode::Shadow, 2.5)));
        assert_eq!(treated("session-affinity"), Some((PolicyMode::Off, 1.0)));
    }
}
