use std::time::Duration;

use ractor::{MessagingErr, SupervisionEvent};
use ractor_cluster::RactorMessage;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::*;

const LIMIT: Duration = Duration::from_secs(60);

/// A supervisor that outlives its children's failures and tells of them.
struct Parent;

#[derive(RactorMessage)]
struct Nothing;

impl Actor for Parent {
    type Msg = Nothing;
    type State = mpsc::Sender<String>;
    type Arguments = mpsc::Sender<String>;

    async fn pre_start(
        &self,
        _: ActorRef<Nothing>,
        tell: mpsc::Sender<String>,
    ) -> Result<mpsc::Sender<String>, ActorProcessingErr> {
        Ok(tell)
    }

    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<Nothing>,
        event: SupervisionEvent,
        tell: &mut mpsc::Sender<String>,
    ) -> Result<(), ActorProcessingErr> {
        if let SupervisionEvent::ActorFailed(_, why) = event {
            let _ = tell.try_send(why.to_string());
        }
        Ok(())
    }
}

/// One test for what is the process's own: the registries that doors stand in.
#[tokio::test]
async fn a_door_takes_bytes_is_announced_and_is_alone_in_that() {
    let (tell, mut failures) = mpsc::channel(8);
    let (parent, _) = Actor::spawn(None, Parent, tell).await.expect("spawned");
    let (seen, mut got) = mpsc::channel(8);
    let handler: Handler = Arc::new(move |bytes: Vec<u8>| {
        assert_ne!(bytes, b"panic");
        seen.try_send(bytes).expect("room");
    });
    let before = announced_actors();
    let port = Port::open(Door::Worker, handler, parent.get_cell()).await.expect("opened");
    assert_eq!(port.door(), Door::Worker);
    assert_eq!(announced_actors(), before + 1);

    // Actors without a door cost the cluster nothing.
    let (tell, _rest) = mpsc::channel(1);
    for _ in 0..100 {
        Actor::spawn_linked(None, Parent, tell.clone(), parent.get_cell()).await.expect("spawned");
    }
    assert_eq!(announced_actors(), before + 1);

    let group = (SCOPE.to_owned(), "worker".to_owned());
    assert!(pg::get_scoped_members(&group.0, &group.1).contains(&port.actor().get_cell()));
    let parcel = |bytes: &[u8]| DoorMsg::Parcel(Parcel(bytes.to_vec()));
    port.actor().send_message(parcel(b"one")).expect("sent");
    assert_eq!(timeout(LIMIT, got.recv()).await.expect("in time"), Some(b"one".to_vec()));

    // A handler that panics ends the door: its supervisor is told, and nobody finds it any more.
    port.actor().send_message(parcel(b"panic")).expect("sent");
    timeout(LIMIT, failures.recv()).await.expect("in time").expect("told");
    assert!(matches!(port.actor().send_message(parcel(b"two")), Err(MessagingErr::SendErr(_))));
    assert!(!pg::get_scoped_members(&group.0, &group.1).contains(&port.actor().get_cell()));
    assert_eq!(announced_actors(), before);
    parent.stop(None);
}

#[test]
fn bytes_cross_as_they_are() {
    for bytes in [vec![], vec![0], vec![0xff; 1000]] {
        assert_eq!(Parcel::from_bytes(Parcel(bytes.clone()).into_bytes()), Parcel(bytes));
    }
}

#[test]
fn a_door_that_is_not_open_gives_the_bytes_back() {
    let doors = PeerDoors::default();
    for door in Door::ALL {
        assert_eq!(doors.send(door, vec![1, 2]), Err(vec![1, 2]));
    }
    assert_eq!(format!("{doors:?}"), "{}");
}
