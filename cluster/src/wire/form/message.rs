//! The messages themselves, and what is in front of them.

use super::{form_enum, form_struct};
use crate::wire::envelope::TraceContext;
use crate::wire::message::{Door, ToController, ToGateway, ToNode, ToPool, ToWorker};

form_enum!(Door { 0 => Node, 1 => Gateway, 2 => Controller, 3 => Worker, 4 => Pool });
form_struct!(TraceContext { trace_id, span_id });

form_enum!(ToNode { 0 => Beat(beat), 1 => Goodbye { id, incarnation, reason } });

form_enum!(ToGateway {
    0 => Placement(effect),
    1 => Admission { worker, request, attempt, result },
    2 => Step { worker, events },
    3 => WorkerLost(worker),
    4 => ModelPart { descriptor, part, parts, bytes },
    5 => ControllerStarted(node),
    6 => Fetched { worker, request, attempt, result },
});

form_enum!(ToController {
    0 => Place { gateway, request },
    1 => Release { request, attempt },
    2 => WorkerLoad { worker, load },
    3 => Accepted { request, attempt },
    4 => KvEvents { worker, seq, events },
    5 => KvSnapshot { worker, seq, part, parts, pages },
    6 => Prefilled { request, attempt },
    7 => PoolEvents { pool, seq, events },
    8 => PoolSnapshot { pool, seq, part, parts, pages },
});

form_enum!(ToPool {
    0 => Store { to, from, spec },
    1 => KvResync { controller },
});

form_enum!(ToWorker {
    0 => Submit { to, gateway, spec, prefill, fetch },
    1 => Cancel { request, attempt },
    2 => CancelChoice { request, attempt, choice },
    3 => Grant { request, attempt, choice, upto },
    4 => DescribeModel { gateway, descriptor },
    5 => KvResync { controller },
    6 => Fetch { to, from, gateway, spec },
    7 => SetRole { role, cause },
    8 => Take { to, from, takes, gateway, spec },
});
