//! The table and the file of figures.

use std::fmt::Write as _;

/// What a figure must keep.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Bound {
    AtLeast(f64),
    AtMost(f64),
    /// For information: what the ratio was made of.
    None,
}

#[derive(Debug)]
struct Figure {
    name: String,
    value: f64,
    unit: &'static str,
    bound: Bound,
}

#[derive(Debug, Default)]
pub(crate) struct Report {
    figures: Vec<Figure>,
}

impl Report {
    pub(crate) fn add(&mut self, name: impl Into<String>, value: f64, unit: &'static str, bound: Bound) {
        self.figures.push(Figure { name: name.into(), value, unit, bound });
    }

    pub(crate) fn table(&self) -> String {
        let mut table = format!("{:<34} {:>14} {:<8} {:>12}  {}\n", "figure", "value", "unit", "bound", "holds");
        for figure in &self.figures {
            let (bound, holds) = match figure.bound {
                Bound::AtLeast(least) => (format!(">= {least}"), verdict(figure.holds())),
                Bound::AtMost(most) => (format!("<= {most}"), verdict(figure.holds())),
                Bound::None => (String::new(), ""),
            };
            let _ = writeln!(table, "{:<34} {:>14.3} {:<8} {:>12}  {}", figure.name, figure.value, figure.unit, bound, holds);
        }
        table
    }

    pub(crate) fn json(&self) -> String {
        let figures: Vec<serde_json::Value> = self
            .figures
            .iter()
            .map(|figure| {
                let mut json = serde_json::json!({ "name": figure.name, "value": figure.value, "unit": figure.unit });
                if let Some(fields) = json.as_object_mut() {
                    match figure.bound {
                        Bound::AtLeast(least) => drop(fields.insert("at_least".into(), least.into())),
                        Bound::AtMost(most) => drop(fields.insert("at_most".into(), most.into())),
                        Bound::None => {}
                    }
                    if !matches!(figure.bound, Bound::None) {
                        fields.insert("holds".into(), figure.holds().into());
                    }
                }
                json
            })
            .collect();
        let mut text = serde_json::to_string_pretty(&figures).unwrap_or_default();
        text.push('\n');
        text
    }
}

impl Figure {
    fn holds(&self) -> bool {
        match self.bound {
            Bound::AtLeast(least) => self.value >= least,
            Bound::AtMost(most) => self.value <= most,
            Bound::None => true,
        }
    }
}

fn verdict(holds: bool) -> &'static str {
    if holds { "yes" } else { "NO" }
}

/// The middle of several measurements.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The value below which this share of the measurements lies.
pub(crate) fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a small index")]
    let at = ((values.len() as f64 * share) as usize).min(values.len().saturating_sub(1));
    values.get(at).copied().unwrap_or(f64::NAN)
}
