//! A controller in memory, for tests.

use crate::node_state::{DRAIN, Node};
use crate::slurm::{Job, Slurm, SlurmError};

/// The controller's time.
pub const SET_AT: i64 = 10_000;

/// A controller in memory that counts the calls made.
#[derive(Default)]
pub struct Fake {
    pub nodes: Vec<Node>,
    pub jobs: Vec<Job>,
    pub down: bool,
    pub refuses: bool,
    pub loads: usize,
    pub notified: Vec<String>,
}

impl Fake {
    pub fn with(count: usize) -> Self {
        let node = |i| Node { name: format!("n{i}"), state: 2, ..Node::default() };
        Fake { nodes: (0..count).map(node).collect(), ..Fake::default() }
    }

    fn answer(&self) -> Result<(), SlurmError> {
        if self.down { Err(SlurmError::NoAnswer("no answer".into())) } else { Ok(()) }
    }

    pub fn set(&mut self, name: &str, state: u32, reason: &str, time: i64) {
        let node = self.nodes.iter_mut().find(|n| n.name == name).unwrap();
        *node = Node { state, reason: reason.into(), reason_time: time, ..node.clone() };
    }

    pub fn drained(&self) -> usize {
        self.nodes.iter().filter(|n| n.drained()).count()
    }
}

impl Slurm for Fake {
    fn via(&self) -> &'static str {
        "fake"
    }
    fn node(&mut self, name: &str) -> Result<Option<Node>, SlurmError> {
        self.answer()?;
        Ok(self.nodes.iter().find(|n| n.name == name).cloned())
    }
    fn nodes(&mut self) -> Result<Vec<Node>, SlurmError> {
        self.answer()?;
        self.loads += 1;
        Ok(self.nodes.clone())
    }
    fn partitions(&mut self, node: &str) -> Result<Vec<String>, SlurmError> {
        self.answer()?;
        Ok(vec!["all".to_string(), if node == "n1" { "batch" } else { "debug" }.to_string()])
    }
    fn drain(&mut self, name: &str, reason: &str) -> Result<(), SlurmError> {
        self.answer()?;
        if self.refuses {
            return Err(SlurmError::Refused("Access denied (2002)".into()));
        }
        self.set(name, 2 | DRAIN, reason, SET_AT);
        Ok(())
    }
    fn undrain(&mut self, name: &str) -> Result<(), SlurmError> {
        self.answer()?;
        let node = self.nodes.iter_mut().find(|n| n.name == name).unwrap();
        node.state &= !DRAIN;
        if !node.down() {
            node.reason.clear();
        }
        Ok(())
    }
    fn set_reason(&mut self, name: &str, reason: &str) -> Result<(), SlurmError> {
        self.answer()?;
        self.nodes.iter_mut().find(|n| n.name == name).unwrap().reason = reason.into();
        Ok(())
    }
    fn set_comment(&mut self, name: &str, comment: &str) -> Result<(), SlurmError> {
        self.answer()?;
        self.nodes.iter_mut().find(|n| n.name == name).unwrap().comment = comment.into();
        Ok(())
    }
    fn job(&mut self, id: u32) -> Result<Option<Job>, SlurmError> {
        self.answer()?;
        Ok(self.jobs.iter().find(|j| j.number == id).cloned())
    }
    fn notify(&mut self, job: &Job, text: &str) -> Result<(), SlurmError> {
        self.notified.push(format!("{} {text}", job.id));
        Ok(())
    }
    fn set_admin_comment(&mut self, job: &Job, text: &str) -> Result<(), SlurmError> {
        self.jobs.iter_mut().find(|j| j.number == job.number).unwrap().admin_comment = text.into();
        Ok(())
    }
}
