//! The metrics of a step, from what the step did.

use std::collections::BTreeMap;

use mipu_agent::Trajectory;

use super::audit::rank_correlation;
use super::setup::Run;
use super::step::Attempt;
use crate::eval::{EvalReport, mean};
use crate::metrics::{StepMetrics, keys};

impl Attempt {
    /// Every metric of the step.
    pub(super) fn metrics(&self, run: &Run, evaluated: Option<&EvalReport>) -> StepMetrics {
        let mut m = StepMetrics::new(run.state.step - 1);
        self.reward_metrics(&mut m, evaluated);
        self.update_metrics(&mut m);
        self.episode_metrics(&mut m);
        self.gate_metrics(&mut m);
        m.extend(self.mismatch.metrics());
        self.task_metrics(&mut m, run);
        m.set(keys::TIME_ROLLOUT, self.times.rollout);
        m.set(keys::TIME_SCORE, self.times.score);
        m.set(keys::TIME_UPDATE, self.times.update);
        m.set(keys::TIME_SYNC, self.times.sync);
        m.set(keys::TIME_GATE, self.times.gate);
        if let Some(audit) = &self.audit {
            m.set(keys::GATE_AUDIT, audit.gap);
            m.set_some(keys::GATE_AUDIT_SE, audit.se);
            m.set_some(
                keys::GATE_AUDIT_RANK_CORRELATION,
                rank_correlation(&run.state.audits),
            );
            m.set(keys::TIME_AUDIT, self.times.audit);
        }
        m.set(keys::GROUP_RESAMPLED, self.resampled as f64);
        m.set(keys::GROUP_MASKED, self.update.masked_episodes as f64);
        let sampled: usize = self.trajectories().map(|t| t.tokens.sampled_len()).sum();
        if self.times.rollout > 0.0 {
            m.set(keys::THROUGHPUT_TOKENS_PER_S, sampled as f64 / self.times.rollout);
        }
        m
    }

    fn reward_metrics(&self, m: &mut StepMetrics, evaluated: Option<&EvalReport>) {
        let reward = self.reward();
        m.set(keys::REWARD_MEAN, reward);
        let variance = mean(self.trajectories().map(|t| (t.ret() - reward).powi(2)));
        m.set(keys::REWARD_STD, variance.sqrt());
        if let Some(validation) = self.statistic.reward {
            m.set(keys::REWARD_VALIDATION, validation.mean);
            m.set_some(keys::REWARD_VALIDATION_SE, validation.se);
        }
        if let Some(report) = evaluated {
            m.set(keys::REWARD_HELD_OUT, report.mean_return);
            m.set(keys::REWARD_HELD_OUT_SE, report.standard_error);
        }
    }

    /// By task file where there are several, by bucket where prompts are drawn from buckets.
    fn task_metrics(&self, m: &mut StepMetrics, run: &Run) {
        let mut by_task: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for group in &self.groups {
            let name = group.task_id.split('/').next().unwrap_or_default();
            let returns = by_task.entry(name).or_default();
            returns.extend(group.trajectories.iter().map(Trajectory::ret));
        }
        if run.config.tasks.len() > 1 {
            for (name, returns) in by_task.iter().filter(|(_, returns)| !returns.is_empty()) {
                m.set(keys::task_reward(name), mean(returns.iter().copied()));
            }
        }
        let Some(mixture) = &run.mixture else { return };
        for (key, share) in mixture.shares(&run.state.buckets) {
            m.set(keys::bucket_share(&key), share);
        }
        for state in &run.state.buckets {
            m.set_some(keys::bucket_pass_rate(&state.key), state.pass_rate);
        }
    }

    fn update_metrics(&self, m: &mut StepMetrics) {
        let u = &self.update;
        m.set(keys::ACTOR_LOSS, u.loss);
        m.set(keys::ACTOR_ENTROPY, u.entropy);
        m.set(keys::ACTOR_GRAD_NORM, u.grad_norm_mean);
        m.set(keys::ACTOR_LR, self.lr);
        m.set(keys::ACTOR_UPDATES, u.optimizer_steps as f64);
        m.set(keys::ACTOR_SKIPPED_UPDATES, u.skipped_minibatches as f64);
        m.set(keys::ACTOR_RATIO_MEAN, u.ratio_mean);
        m.set(keys::ACTOR_CLIP_FRAC_LOW, u.clip_low_frac);
        m.set(keys::ACTOR_CLIP_FRAC_HIGH, u.clip_high_frac);
        m.set(keys::ACTOR_DUAL_CLIP_FRAC, u.dual_clip_frac);
        m.set(keys::ACTOR_KL_REF, u.kl);
        m.set(keys::CORRECTION_TRUNCATED_FRAC, u.truncated_frac);
        let groups = u.groups;
        m.set(keys::GROUP_COUNT, groups.total as f64);
        m.set(
            keys::GROUP_FRAC_ZERO_STD,
            groups.no_spread as f64 / groups.total.max(1) as f64,
        );
        m.set(keys::GROUP_UNSCORED, u.unscored_episodes as f64);
    }

    fn episode_metrics(&self, m: &mut StepMetrics) {
        let sampled = || self.trajectories().map(|t| t.tokens.sampled_len() as f64);
        let turns = || self.trajectories().map(|t| t.turn_rewards.len() as f64);
        m.set(keys::RESPONSE_LENGTH_MEAN, mean(sampled()));
        m.set(keys::RESPONSE_LENGTH_MAX, sampled().fold(0.0, f64::max));
        m.set(keys::NUM_TURNS_MEAN, mean(turns()));
        m.set(keys::NUM_TURNS_MAX, turns().fold(0.0, f64::max));
        m.set(keys::TOKENS_SAMPLED, sampled().sum());
        m.set(
            keys::TOKENS_TOTAL,
            self.trajectories().map(|t| t.tokens.len() as f64).sum(),
        );
        let episodes = self.trajectories().count() as f64;
        m.set(keys::EPISODE_COUNT, episodes);
        m.set(
            keys::EPISODE_MALFORMED_TURNS,
            mean(self.trajectories().map(|t| t.malformed_turns as f64)),
        );
        m.set(
            keys::EPISODE_LATENCY_MS,
            mean(self.trajectories().map(|t| t.latency_ms)),
        );
        let mut stops: BTreeMap<_, usize> = BTreeMap::new();
        let mut facts: BTreeMap<&str, f64> = BTreeMap::new();
        for trajectory in self.trajectories() {
            let Trajectory { stop, metrics, .. } = trajectory;
            *stops.entry(*stop).or_default() += 1;
            for (fact, value) in metrics {
                *facts.entry(fact).or_default() += value;
            }
        }
        m.extend(
            stops
                .into_iter()
                .map(|(stop, n)| (keys::stop(stop), n as f64 / episodes.max(1.0))),
        );
        m.extend(
            facts
                .into_iter()
                .map(|(fact, sum)| (keys::env(fact), sum / episodes.max(1.0))),
        );
    }

    fn gate_metrics(&self, m: &mut StepMetrics) {
        let d = &self.decision;
        m.set_some(keys::GATE_T_HAT, d.t_hat);
        m.set_some(keys::GATE_T_HAT_INFORMATIVE, d.t_hat_informative);
        m.set_some(keys::GATE_SE, d.se);
        m.set_some(keys::GATE_P_VALUE, d.p_value);
        m.set_some(keys::GATE_NULL_SD, d.null_sd);
        m.set_some(keys::GATE_C, d.c_t);
        m.set(keys::GATE_ACCEPTED, f64::from(u8::from(d.accepted)));
        m.set(keys::GATE_UNDEFINED, f64::from(u8::from(d.undefined)));
        m.set(keys::GATE_NON_FINITE, f64::from(u8::from(d.non_finite)));
        m.set(keys::GATE_INFORMATIVE_GROUPS, d.n_informative as f64);
        m.set(keys::GATE_EPISODES, d.n_episodes as f64);
    }
}
