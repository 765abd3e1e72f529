use super::*;

fn config(listen: &str, advertise: Option<&str>) -> Config {
    let mut config = Config::default();
    config.cluster.kv_listen = Some(listen.into());
    config.cluster.kv_advertise = advertise.map(str::to_owned);
    config
}

async fn both(config: &Config) -> [KvEntry; 2] {
    let cookie = || Cookie::load(None, Some("a cookie of tests"), None, true).unwrap().0;
    let worker = KvEntry::prepare(config, cookie(), None).await.unwrap();
    let pool = KvEntry::prepare_beside(config, cookie(), None).await.unwrap();
    [worker, pool]
}

/// A node that is worker and pool has two ports: `cluster.kv-listen` is the worker's.
#[tokio::test]
async fn a_pool_beside_a_worker_has_a_port_of_its_own() {
    let [worker, pool] = both(&config("127.0.0.1:0", None)).await;
    assert_ne!(worker.bound.port(), pool.bound.port());
    assert_eq!(worker.address(), worker.bound.to_string());
    assert_eq!(pool.address(), pool.bound.to_string());

    // The worker's is where the configuration says, and taken.
    let fixed = config(&worker.bound.to_string(), Some("far.example:7001"));
    let error = KvEntry::prepare(&fixed, pool.cookie.clone(), None).await.unwrap_err();
    assert!(format!("{error:#}").contains("cluster.kv-listen"), "{error:#}");
    let beside = KvEntry::prepare_beside(&fixed, pool.cookie.clone(), None).await.unwrap();
    assert_eq!(beside.bound.ip(), worker.bound.ip());
    assert_eq!(beside.address(), format!("far.example:{}", beside.bound.port()));
    assert_eq!(with_port("tcp://[::1]:5", 0), "tcp://[::1]:0");
}
