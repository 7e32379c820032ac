mod cases;
mod lifetimes;
mod random;
mod world;
