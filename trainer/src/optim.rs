//! AdamW with f32 state, updated in place, whose whole state can be taken and put back.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{CpuStorage, InplaceOp1, Layout, Storage, Tensor, Var};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::TrainerError;
use crate::number::{Decay, NonNegative, Positive};
use crate::policy::{Gradients, TrainerPolicy, rows};
use crate::schedule::ScheduleConfig;

/// AdamW (arXiv 1711.05101) and its learning rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OptimConfig {
    /// Learning rate. Default 1e-6 (the paper's, for billions of parameters; the quick start's small model uses 4e-4).
    pub lr: Positive,
    /// Decay of the first moment. Default 0.9.
    pub beta1: Decay,
    /// Decay of the second moment. Default 0.99 (0.999 forgets too slowly for short runs).
    pub beta2: Decay,
    /// Added to the denominator. Default 1e-8.
    pub eps: Positive,
    /// Decoupled weight decay, on matrices only. Default 0.
    pub weight_decay: NonNegative,
    /// Gradients are scaled down to this global norm. Default 1; none switches it off.
    pub max_grad_norm: Option<Positive>,
    /// Learning rate over the run.
    pub schedule: ScheduleConfig,
}

impl Default for OptimConfig {
    fn default() -> Self {
        Self {
            lr: Positive::literal(1e-6),
            beta1: Decay::literal(0.9),
            beta2: Decay::literal(0.99),
            eps: Positive::literal(1e-8),
            weight_decay: NonNegative::literal(0.0),
            max_grad_norm: Some(Positive::literal(1.0)),
            schedule: ScheduleConfig::default(),
        }
    }
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepStats {
    /// Global norm of the gradient before clipping.
    pub grad_norm: f64,
    /// Factor applied to the gradient: 1 without clipping.
    pub clip_factor: f64,
}

/// Named f32 tensors: `(name, shape, values)`.
pub type NamedTensors = Vec<(String, Vec<usize>, Arc<Vec<f32>>)>;

/// The optimizer's moments and step count; cheap to clone.
#[derive(Clone, Debug, PartialEq)]
pub struct AdamWState {
    /// Optimizer steps taken.
    pub step: u64,
    /// First moments, in the policy's order.
    first: NamedTensors,
    /// Second moments, in the policy's order.
    second: NamedTensors,
}

impl AdamWState {
    /// All moments as named tensors, `adam.m.<name>` then `adam.v.<name>` in the policy's order; the step count goes beside them.
    pub fn to_tensors(&self) -> NamedTensors {
        let prefixed = |prefix: &str, tensors: &NamedTensors| -> NamedTensors {
            tensors
                .iter()
                .map(|(n, shape, v)| (format!("{prefix}{n}"), shape.clone(), Arc::clone(v)))
                .collect()
        };
        let mut out = prefixed("adam.m.", &self.first);
        out.extend(prefixed("adam.v.", &self.second));
        out
    }

    /// Reads what [`Self::to_tensors`] wrote, in any order; [`AdamW::restore`] checks it against the policy.
    ///
    /// # Errors
    /// On a name without a known prefix.
    pub fn from_tensors(step: u64, tensors: NamedTensors) -> Result<Self, TrainerError> {
        let mut state = Self {
            step,
            first: Vec::new(),
            second: Vec::new(),
        };
        for (name, shape, values) in tensors {
            if let Some(rest) = name.strip_prefix("adam.m.") {
                state.first.push((rest.to_owned(), shape, values));
            } else if let Some(rest) = name.strip_prefix("adam.v.") {
                state.second.push((rest.to_owned(), shape, values));
            } else {
                return Err(TrainerError::OptimizerState(format!(
                    "unexpected tensor `{name}`"
                )));
            }
        }
        Ok(state)
    }
}

/// AdamW over the variables of one policy.
pub struct AdamW {
    config: OptimConfig,
    state: AdamWState,
}

impl AdamW {
    /// Zero moments for every variable of the policy.
    pub fn new(policy: &TrainerPolicy, config: OptimConfig) -> Self {
        let zeros = || -> NamedTensors {
            let vars = policy.vars().iter();
            vars.map(|(name, var)| {
                (
                    name.clone(),
                    var.dims().to_vec(),
                    Arc::new(vec![0.0; var.elem_count()]),
                )
            })
            .collect()
        };
        Self {
            config,
            state: AdamWState {
                step: 0,
                first: zeros(),
                second: zeros(),
            },
        }
    }

    /// Settings.
    pub fn config(&self) -> &OptimConfig {
        &self.config
    }

    /// The state as it is now: a snapshot that shares memory until the next step.
    pub fn state(&self) -> AdamWState {
        self.state.clone()
    }

    /// Puts back a state; from then on steps are bit for bit those that followed it.
    ///
    /// # Errors
    /// When the state's tensors are not those of this optimizer's policy, naming the first that differs.
    pub fn restore(&mut self, state: &AdamWState) -> Result<(), TrainerError> {
        let sort =
            |have: &NamedTensors, want: &NamedTensors, which: &str| -> Result<NamedTensors, TrainerError> {
                let wrong = TrainerError::OptimizerState;
                if have.len() != want.len() {
                    return Err(wrong(format!(
                        "{which}: expected {} tensors, got {}",
                        want.len(),
                        have.len()
                    )));
                }
                want.iter()
                    .map(|(name, shape, values)| match have.iter().find(|t| t.0 == *name) {
                        None => Err(wrong(format!("{which}: `{name}` is missing"))),
                        Some(t) if t.1 != *shape || t.2.len() != values.len() => Err(wrong(format!(
                            "{which}: `{name}` should be {shape:?}, got {:?}",
                            t.1
                        ))),
                        Some(t) => Ok(t.clone()),
                    })
                    .collect()
            };
        let first = sort(&state.first, &self.state.first, "first moments")?;
        let second = sort(&state.second, &self.state.second, "second moments")?;
        self.state = AdamWState {
            step: state.step,
            first,
            second,
        };
        Ok(())
    }

    /// One step along `gradients` (clipped to the global norm) at learning rate `lr`.
    ///
    /// # Errors
    /// On a gradient that is not finite, or a step that would leave a value or moment that is not, naming the tensor; nothing has changed
    /// then.
    pub(crate) fn step(
        &mut self,
        policy: &mut TrainerPolicy,
        gradients: &Gradients,
        lr: f64,
    ) -> Result<StepStats, TrainerError> {
        let grad_norm = global_norm(policy, gradients)?;
        let clip_factor = match self.config.max_grad_norm {
            Some(max) => (max.get() / (grad_norm + 1e-6)).min(1.0),
            None => 1.0,
        };
        let rule = self.rule(lr, clip_factor);
        let decay = (1.0 - lr * self.config.weight_decay.get()) as f32;
        let rule_of = |shape: &[usize]| rows::AdamRule {
            keep: if shape.len() > 1 { decay } else { 1.0 },
            ..rule
        };

        let moments = self.state.first.iter().zip(&self.state.second);
        for (((name, var), gradient), (first, second)) in
            policy.vars().iter().zip(&gradients.values).zip(moments)
        {
            let rule = rule_of(var.dims());
            let finite = with_host(var, |values| {
                rows::adamw_stays_finite(&rule, gradient, values, &first.2, &second.2)
            })?;
            if !finite {
                let what = format!("`{name}` after a step at learning rate {lr:e}, or a moment of it,");
                return Err(TrainerError::NonFinite {
                    what,
                    value: f64::NAN,
                });
            }
        }
        self.state.step += 1;
        let moments = self.state.first.iter_mut().zip(&mut self.state.second);
        for (((_, var), gradient), (first, second)) in
            policy.vars().iter().zip(&gradients.values).zip(moments)
        {
            let op = AdamStep {
                rule: rule_of(var.dims()),
                gradient,
                moments: Mutex::new((Arc::make_mut(&mut first.2), Arc::make_mut(&mut second.2))),
            };
            if var.device().is_cpu() {
                var.inplace_op1(&op)?;
            } else {
                let mut values = var.flatten_all()?.to_vec1::<f32>()?;
                op.apply(&mut values);
                var.set(&Tensor::from_vec(values, var.dims(), var.device())?)?;
            }
        }
        Ok(StepStats {
            grad_norm,
            clip_factor,
        })
    }

    /// Constants of the next step.
    fn rule(&self, lr: f64, clip_factor: f64) -> rows::AdamRule {
        let (beta1, beta2) = (self.config.beta1.get(), self.config.beta2.get());
        let steps = (self.state.step + 1) as f64;
        rows::AdamRule {
            clip_factor: clip_factor as f32,
            beta1: beta1 as f32,
            one_minus_beta1: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            one_minus_beta2: (1.0 - beta2) as f32,
            step_size: (lr / (1.0 - beta1.powf(steps))) as f32,
            denominator_scale: (1.0 - beta2.powf(steps)).sqrt() as f32,
            eps: self.config.eps.get() as f32,
            keep: 1.0,
        }
    }
}

/// Calls `f` with a variable's values, without a copy on the CPU.
fn with_host<R>(var: &Var, f: impl FnOnce(&[f32]) -> R) -> Result<R, TrainerError> {
    let (storage, layout) = var.storage_and_layout();
    if let (Storage::Cpu(CpuStorage::F32(values)), Some((start, end))) =
        (&*storage, layout.contiguous_offsets())
    {
        return Ok(f(&values[start..end]));
    }
    drop(storage);
    Ok(f(&var.flatten_all()?.to_vec1::<f32>()?))
}

fn global_norm(policy: &TrainerPolicy, gradients: &Gradients) -> Result<f64, TrainerError> {
    let mut total = 0.0;
    for ((name, _), gradient) in policy.vars().iter().zip(&gradients.values) {
        // Blocks of f64 partial sums: exact enough, and an infinity or NaN anywhere shows in the sum.
        let squares: f64 = gradient
            .chunks(4096)
            .map(|c| c.iter().map(|&g| f64::from(g) * f64::from(g)).sum::<f64>())
            .sum();
        if !squares.is_finite() {
            return Err(TrainerError::NonFinite {
                what: format!("gradient of `{name}`"),
                value: squares,
            });
        }
        total += squares;
    }
    Ok(total.sqrt())
}

struct AdamStep<'a> {
    rule: rows::AdamRule,
    gradient: &'a [f32],
    moments: Mutex<(&'a mut Vec<f32>, &'a mut Vec<f32>)>,
}

impl AdamStep<'_> {
    fn apply(&self, values: &mut [f32]) {
        let mut moments = self.moments.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, second) = &mut *moments;
        rows::adamw(&self.rule, self.gradient, values, first, second);
    }
}

impl InplaceOp1 for AdamStep<'_> {
    fn name(&self) -> &'static str {
        "adamw"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let (CpuStorage::F32(values), Some((start, end))) = (storage, layout.contiguous_offsets()) else {
            candle_core::bail!("adamw needs a contiguous f32 variable")
        };
        self.apply(&mut values[start..end]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::testing::{tiny_config, tiny_weights};

    fn policy() -> TrainerPolicy {
        TrainerPolicy::from_weights(&tiny_weights(&tiny_config("qwen3"), 1), &Device::Cpu).unwrap()
    }

    fn gradients(policy: &TrainerPolicy, seed: f32) -> Gradients {
        let mut all = Gradients::zeros(policy);
        for (k, g) in all.values.iter_mut().flatten().enumerate() {
            *g = (k as f32 * 0.37 + seed).sin() * 0.01;
        }
        all
    }

    fn config() -> OptimConfig {
        OptimConfig {
            weight_decay: NonNegative::literal(0.1),
            eps: Positive::literal(1e-6),
            ..OptimConfig::default()
        }
    }

    #[test]
    fn steps_follow_the_equations() {
        let mut pi = policy();
        let mut adam = AdamW::new(&pi, config());
        let before = pi.to_weights().unwrap();
        let (g1, g2) = (gradients(&pi, 0.0), gradients(&pi, 1.0));
        let norm = g1
            .values
            .iter()
            .flatten()
            .map(|&g| f64::from(g).powi(2))
            .sum::<f64>()
            .sqrt();
        let first = adam.step(&mut pi, &g1, 0.1).unwrap();
        assert!((first.grad_norm - norm).abs() < 1e-9 && first.clip_factor >= 1.0);
        adam.step(&mut pi, &g2, 0.05).unwrap();
        for (i, (name, shape, got)) in pi.to_weights().unwrap().tensors.iter().enumerate() {
            for j in 0..got.len() {
                let (mut p, mut m, mut v) = (f64::from(before.tensors[i].2[j]), 0.0, 0.0);
                for (t, (g, lr)) in [(&g1, 0.1), (&g2, 0.05)].into_iter().enumerate() {
                    let g = f64::from(g.values[i][j]);
                    m = 0.9 * m + 0.1 * g;
                    v = 0.99 * v + 0.01 * g * g;
                    let t = t as i32 + 1;
                    let wd = if shape.len() == 2 { 0.1 } else { 0.0 };
                    p -= lr * wd * p;
                    p -= lr * (m / (1.0 - 0.9f64.powi(t))) / ((v / (1.0 - 0.99f64.powi(t))).sqrt() + 1e-6);
                }
                assert!(
                    (f64::from(got[j]) - p).abs() < 1e-5,
                    "{name}[{j}]: {} != {p}",
                    got[j]
                );
            }
        }
    }

    #[test]
    fn gradients_are_clipped_to_the_global_norm() {
        let mut pi = policy();
        let mut adam = AdamW::new(&pi, config());
        let mut g = gradients(&pi, 0.0);
        g.values.iter_mut().flatten().for_each(|g| *g *= 1e4);
        let stats = adam.step(&mut pi, &g, 0.1).unwrap();
        assert!(stats.grad_norm > 100.0 && (stats.clip_factor * stats.grad_norm - 1.0).abs() < 1e-6);
    }

    #[test]
    fn a_gradient_that_is_not_finite_is_refused_by_name() {
        let mut pi = policy();
        let mut adam = AdamW::new(&pi, config());
        let (weights, state) = (pi.to_weights().unwrap(), adam.state());
        for bad in [f32::NAN, f32::INFINITY] {
            let mut g = gradients(&pi, 0.0);
            g.values[2][1] = bad;
            let error = adam.step(&mut pi, &g, 0.1).unwrap_err().to_string();
            assert!(
                error.starts_with("gradient of `model.layers.0.self_attn.q_proj.weight` is not finite"),
                "{error}"
            );
        }
        let fine = gradients(&pi, 0.0);
        let error = adam.step(&mut pi, &fine, 1e39).unwrap_err().to_string();
        assert!(
            error.starts_with("`model.embed_tokens.weight` after a step at learning rate 1e39"),
            "{error}"
        );
        assert!(weights.tensors == pi.to_weights().unwrap().tensors && state == adam.state());
    }

    #[test]
    fn a_restored_state_continues_bit_for_bit() {
        let mut pi = policy();
        let mut adam = AdamW::new(&pi, config());
        let g = gradients(&pi, 0.0);
        adam.step(&mut pi, &g, 0.1).unwrap();
        let (weights, state) = (pi.to_weights().unwrap(), adam.state());
        adam.step(&mut pi, &g, 0.1).unwrap();
        let after = (pi.to_weights().unwrap().tensors, adam.state());
        assert!(after.1 != state, "a snapshot does not follow later steps");

        // Through named tensors, shuffled, into a fresh optimizer: as a checkpoint would.
        let mut tensors = state.to_tensors();
        tensors.reverse();
        let mut fresh = AdamW::new(&pi, config());
        fresh
            .restore(&AdamWState::from_tensors(state.step, tensors).unwrap())
            .unwrap();
        assert_eq!(fresh.state(), state);
        pi.set_weights(&weights).unwrap();
        fresh.step(&mut pi, &g, 0.1).unwrap();
        assert!((pi.to_weights().unwrap().tensors, fresh.state()) == after);
    }

    #[test]
    fn states_of_another_model_are_refused() {
        let pi = policy();
        let mut adam = AdamW::new(&pi, config());
        let mut tensors = adam.state().to_tensors();
        tensors.pop();
        let error = adam
            .restore(&AdamWState::from_tensors(1, tensors.clone()).unwrap())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("second moments: expected 24 tensors, got 23"),
            "{error}"
        );
        tensors.push(("adam.v.other".to_owned(), vec![8], Arc::new(vec![0.0; 8])));
        let error = adam
            .restore(&AdamWState::from_tensors(1, tensors).unwrap())
            .unwrap_err()
            .to_string();
        assert!(error.contains("`model.norm.weight` is missing"), "{error}");
        assert!(AdamWState::from_tensors(1, vec![("x".to_owned(), vec![], Arc::default())]).is_err());
    }
}
