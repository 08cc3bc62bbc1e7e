//! The main job: `sbatch clustermax-suite.sh` on a simulated cluster, by an ordinary user, to its score.
