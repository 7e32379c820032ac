mod cases;
mod direct;
mod lifetimes;
mod random;
mod world;
