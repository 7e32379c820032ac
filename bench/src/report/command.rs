//! `bench report`: documents of benchmarks in, one page and one document out.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::compare::Comparison;
use super::{Report, Section, VERSION, page};

/// The documents and the output.
#[derive(clap::Args)]
pub struct Arguments {
    /// JSON of benchmarks, of `--save` or `--json`
    #[arg(required = true, value_name = "FILE")]
    documents: Vec<PathBuf>,
    /// File for the page
    #[arg(long, value_name = "FILE", default_value = "target/bench/report.html")]
    html: PathBuf,
    /// File for the JSON of all sections
    #[arg(long, value_name = "FILE", default_value = "target/bench/report.json")]
    save: PathBuf,
    /// JSON of an earlier report; lists what changed beyond the noise
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
}

/// Writes the page and the document.
pub fn run(arguments: &Arguments) -> Result<()> {
    let report = merge(&arguments.documents)?;
    let former = arguments.compare.as_deref().map(read).transpose()?;
    let comparison = former.map(|former| Comparison::new(&former, &report));
    let page = page::render(&report, comparison.as_ref())?;
    write(&arguments.html, &page)?;
    write(&arguments.save, &format!("{}\n", serde_json::to_string_pretty(&report)?))?;
    if let Some(comparison) = comparison {
        comparison.print();
    }
    eprintln!("{} and {}", arguments.html.display(), arguments.save.display());
    Ok(())
}

fn merge(documents: &[PathBuf]) -> Result<Report> {
    let mut sections: Vec<Section> = Vec::new();
    for document in documents {
        for section in read(document)?.sections {
            let is_known = sections.iter().any(|known| known.id == section.id);
            ensure!(
                !is_known,
                "{}: another document has the section {}, too",
                document.display(),
                section.id
            );
            sections.push(section);
        }
    }
    Ok(Report::new(sections))
}

fn read(path: &Path) -> Result<Report> {
    let text = fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))?;
    let report: Report = serde_json::from_str(&text)
        .with_context(|| format!("{} is no benchmark's document", path.display()))?;
    ensure!(
        report.version == VERSION,
        "{} has version {}, but this bench reads version {VERSION}",
        path.display(),
        report.version
    );
    Ok(report)
}

fn write(path: &Path, content: &str) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("can't make {}", folder.display()))?;
    }
    fs::write(path, content).with_context(|| format!("can't write {}", path.display()))
}
