use cluster::kv::local::pair;
use cluster::kv::{ArchivedKvHeader, KvHeader, KvLink};

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
    let pool = KvEntry::prepare_pool(config, true, cookie(), None).await.unwrap();
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
    let beside = KvEntry::prepare_pool(&fixed, true, pool.cookie.clone(), None).await.unwrap();
    assert_eq!(beside.bound.ip(), worker.bound.ip());
    assert_eq!(beside.address(), format!("far.example:{}", beside.bound.port()));

    // So is the pool's, where it says.
    let mut own = fixed;
    (own.pool.listen, own.pool.advertise) =
        (Some(beside.bound.to_string()), Some("near.example:7002".into()));
    let error = KvEntry::prepare_pool(&own, true, pool.cookie.clone(), None).await.unwrap_err();
    assert!(format!("{error:#}").contains("pool.listen"), "{error:#}");
    own.pool.listen = Some("127.0.0.1:0".into());
    for beside in [true, false] {
        let there = KvEntry::prepare_pool(&own, beside, pool.cookie.clone(), None).await.unwrap();
        assert_eq!(there.address(), "near.example:7002");
    }
}

/// Hands on what it is told.
struct Teller<M>(std::marker::PhantomData<fn(M)>);

impl<M: ractor::Message> Actor for Teller<M> {
    type Msg = M;
    type State = mpsc::Sender<M>;
    type Arguments = mpsc::Sender<M>;

    async fn pre_start(
        &self,
        _: ActorRef<M>,
        tell: mpsc::Sender<M>,
    ) -> Result<mpsc::Sender<M>, ActorProcessingErr> {
        Ok(tell)
    }

    async fn handle(
        &self,
        _: ActorRef<M>,
        message: M,
        tell: &mut mpsc::Sender<M>,
    ) -> Result<(), ActorProcessingErr> {
        // A test that is over listens no more.
        let _ = tell.send(message).await;
        Ok(())
    }
}

async fn teller<M: ractor::Message>() -> (ActorRef<M>, mpsc::Receiver<M>) {
    let (tell, told) = mpsc::channel(16);
    (Actor::spawn(None, Teller(std::marker::PhantomData), tell).await.unwrap().0, told)
}

/// A transfer is called off before its page set is there to hear of it: it hears of it when it is.
#[tokio::test]
async fn what_is_said_before_a_page_set_is_there_is_not_lost() {
    let layout = PageLayout { page_tokens: 4, layers: 1, kv_heads: 1, head_dim: 8, element_bytes: 4 };
    let peer =
        |name: &str| KvPeer { worker: WorkerId::new(name.into(), 1), address: "far.example:1".to_owned() };
    let (near, far) = pair(peer("a"), peer("b"), layout, 8);
    let (port, mut asked) = teller::<KvPortMsg>().await;
    let (lane, sending, receiving) = Lane::over(1, Box::new(near), port);
    let mut tasks = JoinSet::new();
    tasks.spawn(sending);
    tasks.spawn(receiving);
    let (mut far, _keep) = (Box::new(far) as Box<dyn KvLink>).split();
    let ask = |transfer| KvHeader::Ask {
        transfer,
        generation: 9,
        fingerprint: [5; 32],
        layout: layout.into(),
        first_page: 0,
        want_pages: true,
        reserved: true,
        window: 16,
        spec: vec![1],
        takes: None,
        held: true,
        prefix: None,
    };
    let cancel = |transfer| KvHeader::Cancel { transfer, generation: 9, why: "it is over".to_owned() };
    // What comes before the second question has been routed when that is there.
    for header in [ask(7), cancel(7), ask(8), cancel(8)] {
        far.send(header.into()).await.unwrap();
    }
    let mut questions = Vec::new();
    while questions.len() < 2 {
        if let Some(KvPortMsg::Asked(question)) = asked.recv().await {
            questions.push(question);
        }
    }
    let (set, mut told) = teller::<PageSetMsg>().await;
    let _seat = lane.join(7, &set).unwrap();
    let Some(PageSetMsg::Message(message)) = told.recv().await else { panic!("nothing came") };
    assert!(matches!(message.header(), ArchivedKvHeader::Cancel { .. }));
    // A question that nobody takes leaves nothing.
    assert_eq!(lane.seats(), 2);
    drop(questions);
    assert_eq!(lane.seats(), 1);
}
