//! A chat program: chat MODEL.gguf. Each line of the input is a question; the answer is printed as it is made.
use orrery::{Event, GenerateOptions, Runtime, SessionOptions};
use std::io::{stdin, stdout, BufRead, Write};

fn converse(path: &str) -> orrery::Result<()> {
    let runtime = Runtime::new(Default::default())?;
    let model = runtime.open(path, Default::default())?;
    // A long conversation forgets its beginning instead of stopping.
    let chat = model.session(SessionOptions { overflow: orrery::overflow::DROP_OLDEST, ..Default::default() })?;
    eprint!("> ");
    for line in stdin().lock().lines().map_while(|line| line.ok()) {
        if !line.trim().is_empty() {
            chat.add_message("user", line.trim())?;
            for event in chat.generate(GenerateOptions { max_tokens: 1024, ..Default::default() })? {
                if let Event::Text(text) = event? {
                    print!("{}", text);
                    let _ = stdout().flush();
                }
            }
            println!();
        }
        eprint!("> ");
    }
    Ok(())
}

fn main() {
    match std::env::args().nth(1) {
        None => {
            eprintln!("usage: chat MODEL.gguf");
            std::process::exit(2);
        }
        Some(path) => {
            if let Err(error) = converse(&path) {
                eprintln!("{}", error);
                std::process::exit(1);
            }
        }
    }
}
