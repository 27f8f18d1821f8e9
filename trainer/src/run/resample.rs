//! Dynamic sampling (DAPO, arXiv 2503.14476, section 3.2): groups that carry no signal are replaced by other prompts.

use std::collections::HashSet;
use std::sync::Arc;

use mipu_agent::Group;
use mipu_envs::Task;
use mipu_envs::seed::{self, Purpose};
use tokio_util::sync::CancellationToken;

use super::setup::Run;
use super::step::sample;
use super::{Observer, RunError};
use crate::advantage::group_advantages;
use crate::eval;

/// Keeps the draws apart from the order of the epochs, which shares [`Purpose::Order`].
const TAG: u64 = u64::MAX - 2;

/// Samples further prompts until as many groups as there were carry a signal, at most `max_rounds` times; the surplus is dropped, newest
/// first. Groups without a signal stay where too few took their place. Returns how many groups were sampled in addition.
pub(super) async fn replace_uninformative(
    run: &Run,
    groups: &mut Vec<Group>,
    observer: &dyn Observer,
    cancel: &CancellationToken,
) -> Result<usize, RunError> {
    let Some(config) = &run.config.rollout.dynamic_sampling else {
        return Ok(0);
    };
    let (wanted, mut extra) = (groups.len(), 0);
    let order = seed::derive(run.config.seed, Purpose::Order, &[TAG, run.state.step]);
    for round in 1..=u64::from(config.max_rounds.get()) {
        let missing = groups.iter().filter(|group| !informative(run, group)).count();
        if missing <= extra {
            break;
        }
        let used: HashSet<&str> = groups.iter().map(|group| group.task_id.as_str()).collect();
        let rows = &run.tasks.train;
        let tasks: Vec<Arc<Task>> = eval::draw(rows, rows.len(), Purpose::Order, order, round)
            .into_iter()
            .filter(|task| !used.contains(task.id.as_str()))
            .take(missing - extra)
            .collect();
        if tasks.is_empty() {
            break;
        }
        let size = run.config.rollout.group_size.get();
        let indices = [run.state.step + 1, round];
        let more = sample(run, &tasks, size, Purpose::Sampling, &indices, observer, cancel).await?;
        groups.extend(more);
        extra = groups
            .iter()
            .skip(wanted)
            .filter(|group| informative(run, group))
            .count();
    }
    let sampled = groups.len() - wanted;
    // Informative groups first, each part in the order of sampling.
    groups.sort_by_key(|group| !informative(run, group));
    groups.truncate(wanted);
    Ok(sampled)
}

fn informative(run: &Run, group: &Group) -> bool {
    let algorithm = &run.config.algorithm;
    let usable = group.trajectories.iter().filter(|t| t.tokens.sampled_len() > 0);
    let returns: Vec<f64> = usable.map(|t| algorithm.overlong.ret(t)).collect();
    group_advantages(algorithm.advantage, &returns)
        .uninformative
        .is_none()
}
