mod cases;
mod direct;
mod forged;
mod lifetimes;
mod random;
mod world;
