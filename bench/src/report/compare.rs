//! What changed between two reports beyond the noise.

use super::{Better, Environment, Figure, Group, Report, Section, Spread, Unit};

/// The difference of two reports.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// Figures that changed beyond the noise, the largest change first.
    pub changes: Vec<Change>,
    /// The number of figures that both reports have.
    pub compared: usize,
    /// Figures of the new report alone.
    pub added: Vec<String>,
    /// Figures of the old report alone.
    pub removed: Vec<String>,
    /// Reasons not to believe the changes.
    pub warnings: Vec<String>,
}

/// A figure that changed.
#[derive(Clone, Debug)]
pub struct Change {
    key: Key,
    /// The figures' unit.
    pub unit: Unit,
    better: Better,
    /// The former figure.
    pub old: Spread,
    /// The present figure.
    pub new: Spread,
}

/// All that names a figure. `x` is exact: both reports have it from the same code.
#[derive(Clone, Debug, PartialEq)]
struct Key {
    section: String,
    group: String,
    name: String,
    subject: String,
    x: Option<f64>,
}

impl Comparison {
    /// Compares all figures of the new report with those of the old one.
    pub fn new(old: &Report, new: &Report) -> Self {
        let (olds, news) = (figures(old), figures(new));
        let mut comparison = Self { warnings: warnings(old, new), ..Self::default() };
        for (key, group, figure) in &news {
            let Some((_, _, former)) = olds.iter().find(|(known, ..)| known == key) else {
                comparison.added.push(key.label());
                continue;
            };
            comparison.compared += 1;
            if is_beyond_noise(former, figure) {
                let (key, unit, better) = (key.clone(), group.unit, group.better);
                comparison.changes.push(Change { key, unit, better, old: former.spread, new: figure.spread });
            }
        }
        let removed = olds.iter().filter(|(key, ..)| !news.iter().any(|(known, ..)| known == key));
        comparison.removed = removed.map(|(key, ..)| key.label()).collect();
        comparison.changes.sort_by(|one, other| other.size().total_cmp(&one.size()));
        comparison
    }

    /// Prints a line for each change.
    pub fn print(&self) {
        self.warnings.iter().for_each(|warning| println!("{warning}"));
        println!(
            "{} of {} figures changed beyond the noise; {} are new, {} are gone",
            self.changes.len(),
            self.compared,
            self.added.len(),
            self.removed.len()
        );
        for change in &self.changes {
            let verdict = match change.is_better() {
                Some(true) => "better",
                Some(false) => "worse",
                None => "changed",
            };
            let (old, new) = (change.unit.show(change.old.median), change.unit.show(change.new.median));
            println!("  {:<8} {:>8}  {old:>10} -> {new:<10}  {}", verdict, change.show(), change.label());
        }
    }
}

/// Returns whether two figures differ by more than their noise: the quartiles are apart, and the
/// medians differ by more than both 95 % intervals together and than the instrument's resolution.
fn is_beyond_noise(old: &Figure, new: &Figure) -> bool {
    let difference = (new.spread.median - old.spread.median).abs();
    let is_apart = new.spread.q1 > old.spread.q3 || new.spread.q3 < old.spread.q1;
    let noise = old.spread.notch().hypot(new.spread.notch());
    is_apart && difference > noise && difference > old.resolution.max(new.resolution)
}

impl Change {
    /// Returns whether the change is an improvement; `None` if neither direction is one.
    pub fn is_better(&self) -> Option<bool> {
        match self.better {
            Better::Lower => Some(self.new.median < self.old.median),
            Better::Higher => Some(self.new.median > self.old.median),
            Better::Neither => None,
        }
    }

    /// Returns the change in percent of the former figure.
    pub fn show(&self) -> String {
        if self.old.median == 0.0 {
            return "from 0".to_owned();
        }
        format!("{:+.1} %", (self.new.median / self.old.median - 1.0) * 100.0)
    }

    /// Returns the name of the figure.
    pub fn label(&self) -> String {
        self.key.label()
    }

    /// Returns a number by which changes are sorted: a doubling is as large as a halving.
    fn size(&self) -> f64 {
        let size = (self.new.median / self.old.median).abs().ln().abs();
        if size.is_nan() { f64::INFINITY } else { size }
    }
}

impl Key {
    fn new(section: &Section, group: &Group, figure: &Figure) -> Self {
        Self {
            section: section.id.clone(),
            group: group.title.clone(),
            name: figure.name.clone(),
            subject: figure.subject.clone(),
            x: figure.x,
        }
    }

    fn label(&self) -> String {
        let Self { section, group, name, subject, x } = self;
        let subject = if subject == super::MILLRACE { String::new() } else { format!(", {subject}") };
        let place = x.map(|x| format!(", at {x}")).unwrap_or_default();
        format!("{section}: {group}: {name}{subject}{place}")
    }
}

fn figures(report: &Report) -> Vec<(Key, &Group, &Figure)> {
    let groups =
        report.sections.iter().flat_map(|section| section.groups.iter().map(move |group| (section, group)));
    groups
        .flat_map(|(section, group)| {
            group.figures.iter().map(move |figure| (Key::new(section, group, figure), group, figure))
        })
        .collect()
}

/// Returns a warning for each section that was measured in another environment.
fn warnings(old: &Report, new: &Report) -> Vec<String> {
    let former = |id: &str| old.sections.iter().find(|section| section.id == id);
    let differs = |section: &&Section| {
        former(&section.id).is_some_and(|former| !former.environment.is_same_machine(&section.environment))
    };
    let other = new.sections.iter().filter(differs);
    other.map(|section| format!("{}: the machine, kernel or mitigations differ", section.id)).collect()
}

impl Environment {
    /// Returns whether figures of both can be compared.
    pub fn is_same_machine(&self, other: &Self) -> bool {
        (&self.cpu, self.cores, &self.kernel, &self.mitigations)
            == (&other.cpu, other.cores, &other.kernel, &other.mitigations)
    }

    /// Returns whether both differ at most in time.
    pub fn is_like(&self, other: &Self) -> bool {
        self.is_same_machine(other) && self.commit == other.commit
    }
}

#[cfg(test)]
mod tests {
    use super::super::MILLRACE;
    use super::*;

    fn report(rows: &[(&str, &[f64])]) -> Report {
        let mut section = Section::new("packets", "Packets", "");
        let mut group = Group::new("Cost", Unit::Nanoseconds);
        for (name, samples) in rows {
            group.add(Figure::new(*name, MILLRACE, samples).unwrap().resolution(1.0));
        }
        section.add(group);
        Report::new(vec![section])
    }

    #[test]
    fn only_changes_beyond_the_noise_are_listed_and_the_largest_is_first() {
        let old = report(&[
            ("steady", &[80.0, 81.0, 82.0]),
            ("noisy", &[80.0, 100.0, 120.0]),
            ("a step", &[80.0; 5]),
            ("slower", &[80.0, 81.0, 82.0]),
            ("faster", &[80.0, 81.0, 82.0]),
            ("gone", &[1.0]),
        ]);
        let new = report(&[
            ("steady", &[81.0, 82.0, 82.0]),
            ("noisy", &[110.0, 115.0, 140.0]),
            ("a step", &[81.0; 5]),
            ("slower", &[90.0, 91.0, 92.0]),
            ("faster", &[40.0, 41.0, 42.0]),
            ("new", &[1.0]),
        ]);
        let comparison = Comparison::new(&old, &new);
        let changes: Vec<_> =
            comparison.changes.iter().map(|change| (change.key.name.as_str(), change.is_better())).collect();
        assert_eq!(changes, [("faster", Some(true)), ("slower", Some(false))]);
        assert_eq!((comparison.compared, comparison.added.len(), comparison.removed.len()), (5, 1, 1));
        assert!(comparison.warnings.is_empty());
    }

    #[test]
    fn a_count_of_one_sample_changes_by_any_difference() {
        let count = |value| {
            let mut report = report(&[("instructions", &[value])]);
            report.sections[0].groups[0].figures[0].resolution = 0.0;
            report
        };
        assert_eq!(Comparison::new(&count(1000.0), &count(1001.0)).changes.len(), 1);
        assert_eq!(Comparison::new(&count(1000.0), &count(1000.0)).changes.len(), 0);
    }

    #[test]
    fn another_kernel_is_a_warning() {
        let (old, mut new) = (report(&[("one", &[1.0])]), report(&[("one", &[1.0])]));
        new.sections[0].environment.kernel = "another".into();
        assert_eq!(Comparison::new(&old, &new).warnings.len(), 1);
    }
}
