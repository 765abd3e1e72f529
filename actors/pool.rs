//! Pool role: keeps KV pages in RAM for workers to share. It loads no model and looks into no page; the index of what
//! stays is [`policies::kv::tier`].

use std::collections::BTreeMap;
use std::sync::Arc;

use policies::kv::tier::{Put, Tier, TierKey, TierStats};
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};

/// The pool of a node.
#[derive(Debug)]
pub struct Pool;

/// What a pool is started with.
#[derive(Clone, Copy, Debug)]
pub struct PoolArgs {
    /// Bytes of RAM for pages; taken as they come, not at the start.
    pub ram: u64,
}

/// What a pool's door takes.
#[derive(Debug, ractor_cluster::RactorMessage)]
pub enum PoolMsg {
    /// Keep a complete page.
    Put {
        /// Its name.
        key: TierKey,
        /// Its content in the canonical layout.
        page: Arc<[u8]>,
    },
    /// The longest run of these pages, from the first, that is here.
    Get {
        /// Names in prefix order.
        keys: Vec<TierKey>,
        /// Where to.
        reply: RpcReplyPort<Vec<Arc<[u8]>>>,
    },
    /// Asks for figures.
    Observe(RpcReplyPort<TierStats>),
}

/// The pool's mutable state.
#[derive(Debug)]
pub struct PoolState {
    index: Tier,
    pages: BTreeMap<TierKey, Arc<[u8]>>,
}

impl Actor for Pool {
    type Msg = PoolMsg;
    type State = PoolState;
    type Arguments = PoolArgs;

    async fn pre_start(&self, _: ActorRef<PoolMsg>, args: PoolArgs) -> Result<PoolState, ActorProcessingErr> {
        Ok(PoolState { index: Tier::new(args.ram), pages: BTreeMap::new() })
    }

    async fn handle(
        &self,
        _: ActorRef<PoolMsg>,
        message: PoolMsg,
        state: &mut PoolState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            PoolMsg::Put { key, page } => {
                if let Put::Kept(dropped) = state.index.put(key, page.len() as u64) {
                    for old in dropped {
                        state.pages.remove(&old);
                    }
                    state.pages.insert(key, page);
                }
            }
            PoolMsg::Get { keys, reply } => {
                let run = keys.iter().map_while(|key| {
                    state.index.touch(key);
                    state.pages.get(key).cloned()
                });
                // Whoever asked may have given up.
                let _ = reply.send(run.collect());
            }
            PoolMsg::Observe(reply) => {
                let _ = reply.send(state.index.stats());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use policies::kv::{Fingerprint, PageHash};
    use ractor::call_t;

    use super::*;

    #[tokio::test]
    async fn a_pool_gives_back_the_run_it_holds_and_forgets_what_it_dropped() {
        let (pool, ended) = Actor::spawn(None, Pool, PoolArgs { ram: 8 }).await.unwrap();
        let key = |n: u8| (Fingerprint([0; 32]), PageHash([n; 16]));
        for n in 0..3_u8 {
            pool.cast(PoolMsg::Put { key: key(n), page: Arc::from([n; 4]) }).unwrap();
        }
        let get = |keys: Vec<TierKey>| {
            let pool = pool.clone();
            async move { pool.call(|reply| PoolMsg::Get { keys, reply }, None).await.unwrap().unwrap() }
        };
        assert!(get(vec![key(0), key(1)]).await.is_empty(), "the first page was dropped for the third");
        assert_eq!(get(vec![key(1), key(2), key(3)]).await, vec![Arc::from([1; 4]), Arc::from([2; 4])]);
        let stats = call_t!(pool, PoolMsg::Observe, 1000).unwrap();
        assert_eq!((stats.pages, stats.bytes), (2, 8));
        pool.stop(None);
        ended.await.unwrap();
    }
}
