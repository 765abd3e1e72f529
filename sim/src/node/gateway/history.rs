//! Every answer and every placement of a run.

use std::collections::BTreeMap;
use std::sync::Arc;

use config::ids::{RequestId, WorkerId};
use policies::policy::Stage;
use policies::request::{RequestSpec, Token};
use policies::session::Session;

/// Where a request was placed, and what policies said of it.
pub type Placed = (WorkerId, Arc<[Stage]>);

/// Every answer and every placement, for whoever looks at them when the run has ended.
#[derive(Debug, Default)]
pub struct History {
    /// What each request was answered, by choice; complete or not.
    pub answers: BTreeMap<RequestId, Vec<Vec<Token>>>,
    /// The placements of each request in turn.
    pub placements: BTreeMap<RequestId, Vec<Placed>>,
}

impl History {
    pub(super) fn begins(&mut self, spec: &RequestSpec) {
        self.answers.insert(spec.id, vec![Vec::new(); spec.choices()]);
        self.placements.insert(spec.id, Vec::new());
    }

    pub(super) fn placed(&mut self, id: RequestId, at: WorkerId, stages: Arc<[Stage]>) {
        if let Some(placements) = self.placements.get_mut(&id) {
            placements.push((at, stages));
        }
    }

    pub(super) fn ends(&mut self, session: &Session) {
        let choices = 0..session.spec().choices() as u32;
        let answers = choices.map(|choice| session.tokens(choice).to_vec()).collect();
        self.answers.insert(session.spec().id, answers);
    }
}
