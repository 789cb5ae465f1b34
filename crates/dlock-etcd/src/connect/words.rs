//! Our transactions in the client's words, and its answers in ours.

use etcd_client::{
    Compare, CompareOp, DeleteOptions, GetOptions, KeyValue, PutOptions, SortOrder, SortTarget,
    Txn as ClientTxn, TxnOp, TxnOpResponse, TxnResponse,
};

use crate::txn::{Found, Order, Query, Range, Row, Step, Txn, TxnAnswer, Want, When};

pub(super) fn to_client(txn: &Txn) -> ClientTxn {
    let mut when = Vec::with_capacity(txn.when.len() + 1);
    for condition in &txn.when {
        let (one, other) = compare(condition);
        when.push(one);
        when.extend(other);
    }
    let steps = |steps: &[Step]| -> Vec<TxnOp> {
        steps
            .iter()
            .map(|step| operation(step, txn.local))
            .collect()
    };
    ClientTxn::new()
        .when(when)
        .and_then(steps(&txn.then))
        .or_else(steps(&txn.or_else))
}

/// One comparison, or two.
fn compare(when: &When) -> (Compare, Option<Compare>) {
    let over = |range: &Range, op, revision| {
        let compare = Compare::create_revision(range.start.clone(), op, revision);
        if range.end.is_empty() {
            compare
        } else {
            compare.with_range(range.end.clone())
        }
    };
    match when {
        When::CreatedAt(key, revision) => {
            let equal = Compare::create_revision(key.clone(), CompareOp::Equal, *revision);
            (equal, None)
        }
        // A line break and more comes behind the line: that is greater than the line alone, and less than the line with the next higher byte.
        When::FirstLine(key, line) => {
            let longer = Compare::value(key.clone(), CompareOp::Greater, line.as_str());
            let end = format!("{line}\u{b}");
            let ends = Compare::value(key.clone(), CompareOp::Less, end);
            (longer, Some(ends))
        }
        // A range without keys compares as one key that was created at 0; one with keys fails.
        When::NoneIn(range) => (over(range, CompareOp::Equal, 0), None),
        When::NoneSince(range, revision) => {
            let next = revision.saturating_add(1);
            (over(range, CompareOp::Less, next), None)
        }
    }
}

fn operation(step: &Step, local: bool) -> TxnOp {
    match step {
        Step::Put { key, value, lease } => {
            let options = PutOptions::new().with_lease(*lease);
            TxnOp::put(key.clone(), value.clone(), Some(options))
        }
        Step::Delete(key) => TxnOp::delete(key.clone(), Some(DeleteOptions::new())),
        Step::Get(_, query) => {
            let mut options = get_options(query);
            if local {
                options = options.with_serializable();
            }
            TxnOp::get(query.range.start.clone(), Some(options))
        }
    }
}

fn get_options(query: &Query) -> GetOptions {
    let order = match query.order {
        Order::OldestFirst => SortOrder::Ascend,
        Order::NewestFirst => SortOrder::Descend,
    };
    let mut options = GetOptions::new()
        .with_sort(SortTarget::Create, order)
        .with_limit(query.limit);
    if !query.range.end.is_empty() {
        options = options.with_range(query.range.end.clone());
    }
    if query.before > 0 {
        options = options.with_max_create_revision(query.before - 1);
    }
    match query.want {
        Want::All => options,
        Want::Keys => options.with_keys_only(),
        Want::Count => options.with_count_only(),
    }
}

pub(super) fn row(kv: KeyValue) -> Row {
    let (created, modified, lease) = (kv.create_revision(), kv.mod_revision(), kv.lease());
    let (key, value) = kv.into_key_value();
    Row {
        key,
        value,
        created,
        modified,
        lease,
    }
}

/// The store answers in the order of the steps; from here on an answer has the name of its question.
pub(super) fn answer(txn: &Txn, response: TxnResponse) -> TxnAnswer {
    let mut answer = TxnAnswer {
        succeeded: response.succeeded(),
        revision: response.header().map_or(0, |header| header.revision()),
        ..TxnAnswer::default()
    };
    let steps = if answer.succeeded {
        &txn.then
    } else {
        &txn.or_else
    };
    for (step, part) in steps.iter().zip(response.op_responses()) {
        if let (Step::Get(about, _), TxnOpResponse::Get(mut get)) = (step, part) {
            answer.found.push(Found {
                about: *about,
                total: get.count(),
                rows: get.take_kvs().into_iter().map(row).collect(),
            });
        }
    }
    answer
}
