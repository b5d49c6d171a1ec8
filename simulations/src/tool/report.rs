//! What many runs of one scenario add up to: as JSON, as one HTML page that needs nothing else, and against an earlier report.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::plot::{Line, distribution, escape, quantile, short, svg};

/// A figure that got worse by more than this is pointed out.
pub const TOLERANCE: f64 = 1.25;

/// The figures of one run, by the name that they have in the report.
pub type Figures = BTreeMap<&'static str, Vec<f64>>;

/// What is measured: name, unit, heading. Of all of them less is better.
pub const METRICS: &[(&str, &str, &str)] = &[
    ("time_to_equality", "ms", "Time from the last fault to equality"),
    ("bytes_per_write", "bytes", "Bytes on the network per replicated write"),
    ("ack_latency", "ms", "Time from a write to its answer"),
    ("memory", "bytes", "Most bytes that one node kept waiting"),
];

/// Many runs of one scenario.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The scenario's name.
    pub scenario: String,
    /// How many seeds were run.
    pub runs: u64,
    /// Simulated events in all runs.
    pub events: u64,
    /// Real seconds.
    pub seconds: f64,
    /// Seed, checker and message of each violation.
    pub violations: Vec<(u64, String, String)>,
    /// How often each interesting path was taken.
    pub marks: BTreeMap<String, u64>,
    /// The figures.
    pub metrics: BTreeMap<String, Metric>,
}

/// One figure over all runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// Half of the samples are at or below.
    pub p50: f64,
    /// 90 % are.
    pub p90: f64,
    /// 99 % are.
    pub p99: f64,
    /// All are.
    pub max: f64,
    /// The share of samples at or below a value, by value.
    pub curve: Vec<(f64, f64)>,
}

/// Gathers the figures of runs.
#[derive(Debug, Default)]
pub struct Gathering(BTreeMap<&'static str, Vec<f64>>);

impl Gathering {
    /// Most samples kept per figure; of more every other one goes.
    const SAMPLES: usize = 100_000;

    /// Takes in one run.
    pub fn add(&mut self, figures: Figures) {
        for (name, samples) in figures {
            let all = self.0.entry(name).or_default();
            all.extend(samples);
            if all.len() > Self::SAMPLES {
                let mut keep = false;
                all.retain(|_| {
                    keep = !keep;
                    keep
                });
            }
        }
    }

    /// The figures of all runs.
    #[must_use]
    pub fn metrics(&self) -> BTreeMap<String, Metric> {
        let metric = |samples: &Vec<f64>| {
            let [p50, p90, p99, max] = [0.5, 0.9, 0.99, 1.0].map(|share| quantile(samples, share));
            Metric { p50, p90, p99, max, curve: distribution(samples) }
        };
        self.0.iter().map(|(name, samples)| ((*name).to_owned(), metric(samples))).collect()
    }
}

impl Report {
    /// Simulated events per real minute.
    #[must_use]
    pub fn events_per_minute(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let events = self.events as f64;
        events / self.seconds.max(1e-3) * 60.0
    }

    /// What is worse than in the baseline by more than [`TOLERANCE`], a line for each figure.
    #[must_use]
    pub fn worse_than(&self, baseline: &Self) -> Vec<String> {
        let mut worse = Vec::new();
        for (name, metric) in &self.metrics {
            let Some(before) = baseline.metrics.get(name) else { continue };
            for (what, now, then) in [("p50", metric.p50, before.p50), ("p99", metric.p99, before.p99)] {
                if now > then * TOLERANCE && now > 1.0 {
                    worse.push(format!("{name} {what}: {} instead of {}", short(now), short(then)));
                }
            }
        }
        worse
    }

    /// The report as lines of text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = format!(
            "{}: {} seeds, {} violations, {} events in {:.1} s ({} per minute)\n",
            self.scenario,
            self.runs,
            self.violations.len(),
            short_count(self.events),
            self.seconds,
            short(self.events_per_minute())
        );
        for (name, unit, _) in METRICS {
            if let Some(metric) = self.metrics.get(*name) {
                let [p50, p90, p99, max] = [metric.p50, metric.p90, metric.p99, metric.max].map(short);
                let _ = writeln!(out, "  {name:<18} p50 {p50:>7}  p90 {p90:>7}  p99 {p99:>7}  max {max:>7}  {unit}");
            }
        }
        out
    }

    /// The report as one HTML page.
    #[must_use]
    pub fn html(&self, baseline: Option<&Self>) -> String {
        let mut out = format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>kvdb simulation: {name}</title>\
             <style>body{{font:14px sans-serif;max-width:1100px;margin:2em auto}}svg{{font-size:11px;margin:1em}}\
             table{{border-collapse:collapse}}td,th{{padding:2px 10px;border-bottom:1px solid #ddd;text-align:right}}\
             td:first-child,th:first-child{{text-align:left}}.bad{{color:#a30}}</style><h1>{name}</h1><p>{runs} seeds, \
             {violations} violations, {events} events in {seconds:.1} s, {rate} events per minute.</p>",
            name = escape(&self.scenario),
            runs = self.runs,
            violations = self.violations.len(),
            events = short_count(self.events),
            seconds = self.seconds,
            rate = short(self.events_per_minute()),
        );
        self.html_violations(&mut out);
        out.push_str("<table><tr><th>figure<th>unit<th>p50<th>p90<th>p99<th>max</tr>");
        for (name, unit, heading) in METRICS {
            let Some(metric) = self.metrics.get(*name) else { continue };
            let before = baseline.and_then(|baseline| baseline.metrics.get(*name));
            let cell = |now: f64, then: Option<f64>| {
                let bad = if then.is_some_and(|then| now > then * TOLERANCE && now > 1.0) { " class=\"bad\"" } else { "" };
                let then = then.map(|then| format!(" ({})", short(then))).unwrap_or_default();
                format!("<td{bad}>{}{then}", short(now))
            };
            let _ = write!(
                out,
                "<tr><td>{heading}<td>{unit}{}{}{}{}</tr>",
                cell(metric.p50, before.map(|before| before.p50)),
                cell(metric.p90, before.map(|before| before.p90)),
                cell(metric.p99, before.map(|before| before.p99)),
                cell(metric.max, before.map(|before| before.max)),
            );
        }
        out.push_str("</table>");
        if baseline.is_some() {
            out.push_str("<p>In brackets, and grey in the plots: the baseline.</p>");
        }
        for (name, unit, heading) in METRICS {
            let Some(metric) = self.metrics.get(*name) else { continue };
            let mut lines = vec![Line { name: "this run", colour: "#036", points: metric.curve.clone() }];
            if let Some(before) = baseline.and_then(|baseline| baseline.metrics.get(*name)) {
                lines.push(Line { name: "baseline", colour: "#999", points: before.curve.clone() });
            }
            out.push_str(&svg(heading, unit, &lines));
        }
        out.push_str("<h2>Paths taken</h2><table><tr><th>mark<th>times</tr>");
        for (mark, count) in &self.marks {
            let _ = write!(out, "<tr><td>{}<td>{count}</tr>", escape(mark));
        }
        out.push_str("</table></html>\n");
        out
    }

    fn html_violations(&self, out: &mut String) {
        if self.violations.is_empty() {
            return;
        }
        out.push_str("<table><tr><th>seed<th>checker<th>what</tr>");
        for (seed, checker, what) in &self.violations {
            let _ = write!(out, "<tr class=\"bad\"><td>{seed}<td>{}<td>{}</tr>", escape(checker), escape(what));
        }
        out.push_str("</table>");
    }
}

fn short_count(count: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "for the eye")]
    short(count as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(samples: Vec<f64>) -> Report {
        let mut gathering = Gathering::default();
        gathering.add(BTreeMap::from([("ack_latency", samples)]));
        Report { scenario: "a<b".to_owned(), runs: 1, metrics: gathering.metrics(), ..Report::default() }
    }

    #[test]
    fn a_figure_that_got_worse_is_pointed_out() {
        let (now, before) = (report(vec![30.0, 31.0, 40.0]), report(vec![10.0, 11.0, 39.0]));
        let worse = now.worse_than(&before);
        assert!(worse.len() == 1 && worse.concat().contains("p50"), "{worse:?}");
        assert!(before.worse_than(&before).is_empty());
    }

    #[test]
    fn a_report_survives_json_and_its_page_needs_nothing_else() {
        let mut report = report(vec![1.0, 2.0]);
        report.violations.push((7, "equality".to_owned(), "n0 < n1".to_owned()));
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
        let page = report.html(Some(&report));
        assert!(page.contains("a&lt;b") && page.contains("n0 &lt; n1") && page.contains("baseline"));
        assert!(!page.contains("http") && !page.contains("src="));
    }
}
