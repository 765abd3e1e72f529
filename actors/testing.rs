//! What tests of several roles share.

use cluster::wire::ToGateway;
use config::ids::RequestId;
use policies::request::RequestSpec;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::mpsc;

use crate::doors::{Doors, GatewayMsg};

/// A gateway `id` that hands on what controllers and workers tell it.
pub(crate) async fn listener(doors: &Doors, id: &str) -> mpsc::Receiver<ToGateway> {
    let (tell, told) = mpsc::channel(64);
    let (gateway, _) = Actor::spawn(None, Listener, tell).await.unwrap();
    doors.add_gateway(id.into(), gateway.get_derived());
    told
}

/// A request of one choice for a few tokens of the fake model.
pub(crate) fn request(number: u64, max_tokens: u32) -> RequestSpec {
    RequestSpec {
        ignore_end: true,
        ..RequestSpec::plain(RequestId::new(1, number), "fake".into(), [1, 2, 3], max_tokens)
    }
}

struct Listener;

impl Actor for Listener {
    type Msg = GatewayMsg;
    type State = mpsc::Sender<ToGateway>;
    type Arguments = mpsc::Sender<ToGateway>;

    async fn pre_start(
        &self,
        _: ActorRef<GatewayMsg>,
        told: mpsc::Sender<ToGateway>,
    ) -> Result<mpsc::Sender<ToGateway>, ActorProcessingErr> {
        Ok(told)
    }

    async fn handle(
        &self,
        _: ActorRef<GatewayMsg>,
        message: GatewayMsg,
        told: &mut mpsc::Sender<ToGateway>,
    ) -> Result<(), ActorProcessingErr> {
        if let GatewayMsg::Wire(message) = message {
            told.send(message).await?;
        }
        Ok(())
    }
}
