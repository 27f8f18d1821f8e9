//! Markov decision processes as plain data, and what the best policy earns in them.

use std::collections::HashMap;
use std::hash::Hash;

use rand::RngExt;

use super::Chance;

/// One thing that an action may lead to.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome<S> {
    /// Its probability; those of an action add up to 1.
    pub probability: f64,
    /// The next state.
    pub state: S,
    /// The reward of this step.
    pub reward: f64,
    /// The next state is terminal.
    pub done: bool,
}

/// A finite decision process.
pub trait Mdp {
    /// A state, as the process (not the agent) knows it.
    type State: Clone + Eq + Hash;
    /// An action.
    type Action: Clone;

    /// What may be done in a state that is not terminal.
    fn actions(&self, state: &Self::State) -> Vec<Self::Action>;

    /// Everything that an action may lead to, with its exact probability.
    fn outcomes(&self, state: &Self::State, action: &Self::Action) -> Vec<Outcome<Self::State>>;
}

/// Largest expected sum of rewards over the next `horizon` actions, by backward induction over the states that can be reached
/// (Bellman's equation `v_n(s) = max_a sum_s' p(s' | s, a) (r + v_(n-1)(s'))`, `v_0 = 0`).
pub fn optimal_value<M: Mdp>(mdp: &M, state: &M::State, horizon: usize) -> f64 {
    value(mdp, state, horizon, &mut HashMap::new())
}

/// The first action that reaches [`optimal_value`]; `None` when nothing can be done.
pub fn best_action<M: Mdp>(mdp: &M, state: &M::State, horizon: usize) -> Option<M::Action> {
    let mut known = HashMap::new();
    let mut best: Option<(f64, M::Action)> = None;
    for action in mdp.actions(state) {
        let worth = action_value(mdp, state, &action, horizon, &mut known);
        // Rounding must not decide between equals.
        if best.as_ref().is_none_or(|(most, _)| worth > most + 1e-12) {
            best = Some((worth, action));
        }
    }
    best.map(|(_, action)| action)
}

type Known<S> = HashMap<(S, usize), f64>;

fn value<M: Mdp>(mdp: &M, state: &M::State, horizon: usize, known: &mut Known<M::State>) -> f64 {
    if horizon == 0 {
        return 0.0;
    }
    let key = (state.clone(), horizon);
    if let Some(&value) = known.get(&key) {
        return value;
    }
    let worths = mdp
        .actions(state)
        .into_iter()
        .map(|action| action_value(mdp, state, &action, horizon, known));
    let best = worths.reduce(f64::max).unwrap_or_default();
    known.insert(key, best);
    best
}

fn action_value<M: Mdp>(
    mdp: &M,
    state: &M::State,
    action: &M::Action,
    horizon: usize,
    known: &mut Known<M::State>,
) -> f64 {
    let outcomes = mdp.outcomes(state, action).into_iter();
    outcomes
        .map(|outcome| {
            let later = if outcome.done {
                0.0
            } else {
                value(mdp, &outcome.state, horizon - 1, known)
            };
            outcome.probability * (outcome.reward + later)
        })
        .sum()
}

/// One of the outcomes, by its probability. Always one uniform, so that what follows does not depend on the outcomes' number.
pub(super) fn draw<S>(outcomes: Vec<Outcome<S>>, chance: &mut Chance) -> Outcome<S> {
    let mut left: f64 = chance.random();
    let mut last = None;
    for outcome in outcomes {
        if left < outcome.probability {
            return outcome;
        }
        left -= outcome.probability;
        // Rounding may leave a sliver beyond the last outcome that is possible at all.
        if outcome.probability > 0.0 {
            last = Some(outcome);
        }
    }
    last.expect("an action has an outcome of positive probability")
}
