//! Conformance, Rust: carries out the steps of a script, prints what they give. ../../../../conformance/README.md has the verbs.
mod by_name;

use by_name::*;
use orrery::*;
use std::panic::{catch_unwind, resume_unwind, set_hook, AssertUnwindSafe};
use std::sync::Arc;

fn step(r: &mut Runner, verb: &str, w: &[&str], rest: &dyn Fn(usize) -> String) -> Result<()> {
    let number = |i: usize| w[i].parse::<i64>().unwrap();
    let ids = |i: usize| w[i..].iter().map(|x| x.parse().unwrap()).collect::<Vec<i32>>();
    let n = w.get(1).map_or(0, |x| x.parse::<usize>().unwrap_or(0));
    let made = match verb {
        "runtime" => Thing::Runtime(Runtime::new(options!(r, RuntimeOptions, "runtime", log = |act: Act| Box::new(move |_: i32, _: &str| { act(None); }) as LogFn))?),
        "vocab" => Thing::Vocab(Vocab::open(&rest(1))?), "vocab_of" => Thing::Vocab(get!(r, Model, w[1]).vocab()?),
        "model" => { let o = options!(r, ModelOptions, "model", progress = |act: Act| Box::new(move |_, _| act(None)) as ProgressFn); Thing::Model(Arc::new(get!(r, Runtime, w[1]).open(&rest(2), o)?)) }
        "model_fd" | "model_part" => {
            use std::os::unix::io::AsRawFd;
            let part = verb == "model_part";
            let (file, options) = (std::fs::File::open(rest(if part { 4 } else { 2 })).unwrap(), options!(r, ModelOptions, "model"));
            let (offset, bytes) = if part { (number(2) as u64, number(3) as u64) } else { (0, 0) };
            Thing::Model(Arc::new(get!(r, Runtime, w[1]).open(Source::Fd { fd: file.as_raw_fd(), offset, bytes }, options)?))
        }
        "model_memory" => { let o = options!(r, ModelOptions, "model"); Thing::Model(Arc::new(get!(r, Runtime, w[1]).open(Source::Memory(&std::fs::read(rest(2)).unwrap()), o)?)) }
        "vocab_memory" => Thing::Vocab(Vocab::open(Source::Memory(&std::fs::read(rest(1)).unwrap()))?),
        "vocab_fd" => { use std::os::unix::io::AsRawFd; let file = std::fs::File::open(rest(1)).unwrap(); Thing::Vocab(Vocab::open(Source::fd(file.as_raw_fd()))?) }
        "plan_memory" => Thing::Plan(plan(Source::Memory(&std::fs::read(rest(1)).unwrap()), options!(r, RuntimeOptions, "runtime"), options!(r, ModelOptions, "model"), options!(r, SessionOptions, "session"))?),
        "plan_fd" => { use std::os::unix::io::AsRawFd; let file = std::fs::File::open(rest(1)).unwrap(); Thing::Plan(plan(Source::fd(file.as_raw_fd()), options!(r, RuntimeOptions, "runtime"), options!(r, ModelOptions, "model"), options!(r, SessionOptions, "session"))?) }
        "adapter" => Thing::Adapter(get!(r, Model, w[1]).adapter(&rest(2))?),
        "folder" => Thing::Folder(Arc::new(Folder::open(rest(2), number(1) as u64)?)),
        "folder_save" | "folder_load" => {
            let (name, folder) = (rest(2), get!(r, Folder, w[0]).clone());
            let session = get!(r, Session, w[1]);
            return if verb == "folder_load" { folder.load(session, &name) } else { folder.save(session, if name == "-" { None } else { Some(&name) }) };
        }
        "folder_remove" => return get!(r, Folder, w[0]).remove(&rest(1)),
        "folder_list" => {
            let json = get!(r, Folder, w[0]).list()?.replace(", ", ",").replace(": ", ":");
            return Ok(println!("{} {}", json.matches('{').count(), yes(json.contains(&rest(1)))));
        }
        "session" => { let (draft_model, folder) = (r.draft(), r.folder()); let o = SessionOptions { draft_model, folder, ..options!(r, SessionOptions, "session") }; Thing::Session(get!(r, Model, w[1]).session(o)?) }
        "fork" => Thing::Session(get!(r, Session, w[1]).fork()?),
        "plan" => Thing::Plan(plan(&rest(1), options!(r, RuntimeOptions, "runtime"), options!(r, ModelOptions, "model"), options!(r, SessionOptions, "session"))?),
        "calibrate" => {
            let o = options!(r, CalibrateOptions, "calibrate", progress = |act: Act| Box::new(move |_, _| act(None)) as ProgressFn);
            let texts = rest(3).split('|').map(|text| get!(r, Vocab, w[2]).tokenize(text, 0)).collect::<Result<Vec<_>>>()?;
            Thing::Calibration(get!(r, Model, w[1]).calibrate(&texts, o)?)
        }
        "matcher" => {
            let o = options!(r, GenerateOptions, "generate", logits_hook = |act: Act| Box::new(move |logits: &mut [f32], _: &[i32]| act(Some(logits))) as LogitsFn);
            Thing::Matcher(get!(r, Vocab, w[1]).matcher(o)?)
        }
        "generate" | "continue" | "answer" | "break" => {
            let o = options!(r, GenerateOptions, "generate", logits_hook = |act: Act| Box::new(move |logits: &mut [f32], _: &[i32]| act(Some(logits))) as LogitsFn);
            match verb {
                "continue" => Thing::Generation(get!(r, Session, w[1]).generate_tokens(&ids(2), o)?),
                "generate" => Thing::Generation(get!(r, Session, w[1]).generate(o)?),
                "answer" => return answer(get!(r, Session, w[0]).generate(o)?),
                _ => { for (i, event) in get!(r, Session, w[0]).generate(o)?.enumerate() { show(&event?); if i + 1 == n { break; } } return Ok(()) }
            }
        }
        "save_buffer" => Thing::Bytes(get!(r, Session, w[1]).save_buffer()?),
        "abi" => return Ok(println!("{} {} {}", abi_version(), version(), yes(!build_info().is_empty()))),
        "status" => return Ok(println!("{}", Status(number(0) as i32).name())), "set" => return Ok(r.set(w[0], rest(1), None)),
        "callback" => return Ok(r.set(w[0], String::new(), Some((w[1].to_owned(), ids(2).iter().map(|x| *x as usize).collect())))),
        "experts" => { let experts = get!(r, Model, w[0]).experts()?; return Ok(println!("{}", join(w[1..].iter().map(|name| field(experts.get(name).unwrap()))))) }
        "streaming" => { let streaming = get!(r, Model, w[0]).streaming()?; return Ok(println!("{}", join(w[1..].iter().map(|name| field(streaming.get(name).unwrap()))))) }
        "layer" => { let layer = get!(r, Model, w[0]).layer(n as u32)?; return Ok(println!("{}", join(w[2..].iter().map(|name| field(layer.get(name).unwrap()))))) }
        "kv_bytes" => return Ok(println!("{}", kv_type_bytes(number(0) as u32, number(1) as u32, number(2) as u32))),
        "name" => return Ok(println!("{}", constant_name(w[0], number(1)).unwrap())), "threads" => return get!(r, Runtime, w[0]).set_threads(number(1) as i32, number(2) as i32),
        "embed" => {
            let o = options!(r, EmbedOptions, "embed", progress = |act: Act| Box::new(move |_, _| act(None)) as ProgressFn);
            return embed(get!(r, Model, w[0]).embed(&rest(1).split('|').collect::<Vec<_>>(), o)?);
        }
        "rank" => {
            let o = options!(r, EmbedOptions, "embed", progress = |act: Act| Box::new(move |_, _| act(None)) as ProgressFn);
            let given = rest(1);
            let given: Vec<_> = given.split('|').collect();
            return Ok(println!("best {}", largest(&get!(r, Model, w[0]).rank(given[0], &given[1..], o)?)));
        }
        "regions" => {
            let all = plan_regions(&rest(1), options!(r, RuntimeOptions, "runtime"), options!(r, ModelOptions, "model"), options!(r, SessionOptions, "session"))?;
            let same = all.iter().map(|x| x.device_bytes).sum::<u64>() == get!(r, Plan, w[0]).device_bytes;
            return Ok(println!("{} {}", join(all.iter().map(|x| quote(x.name.as_bytes()))), yes(same)))
        }
        "devices" => return Ok(println!("{}", yes(devices()?.iter().all(|d| !d.name.is_empty() || !d.refused.is_empty())))),
        "cancel_session" => { let c = get!(r, Session, w[0]).canceller(); return Ok(std::thread::spawn(move || c.cancel()).join().unwrap()) }
        "calls" => return Ok(println!("{}", yes(r.calls.lock().unwrap().get(w[0]).map_or(0, |n| *n) > 0))),
        "free" => { r.things.remove(w[0]); return Ok(()) }
        "info" => { let f = r.fields(w[0])?; return Ok(println!("{}", join(w[1..].iter().map(|name| field(f(name)))))) }
        "compare" => {
            let f = r.fields(w[0])?;
            let side = |x: &str| x.parse().unwrap_or_else(|_| match f(x) { Value::Integer(i) => i, _ => panic!() });
            return Ok(println!("{}", ["<", "=", ">"][(side(w[1]).cmp(&side(w[2])) as i8 + 1) as usize]))
        }
        "format" => { let o = options!(r, TemplateOptions, "template"); return Ok(println!("{}", yes(get!(r, Vocab, w[0]).chat_format(o)?.replace(", ", ",").replace(": ", ":").contains(&rest(1))))) }
        "tokenize" => return Ok(println!("{}", join(get!(r, Vocab, w[0]).tokenize(&rest(2), n as u32)?))),
        "detokenize" => return Ok(println!("{}", quote(&get!(r, Vocab, w[0]).detokenize(&ids(2), n as u32)?))),
        "flags" => return Ok(println!("{}", get!(r, Vocab, w[0]).token_flags(number(1) as i32))),
        "render" => { let o = options!(r, TemplateOptions, "template"); return Ok(println!("{}", quote(get!(r, Vocab, w[0]).render_chat(&rest(1), o)?.as_bytes()))) }
        "template" => { let o = options!(r, TemplateOptions, "template"); return get!(r, Session, w[0]).set_template(o) }
        "say" => return get!(r, Session, w[0]).add_message(w[1], &rest(2)), "say_json" => return get!(r, Session, w[0]).add_message_json(&rest(1)),
        "messages" => { let s = get!(r, Session, w[0]); let all = (0..s.n_messages()).map(|i| Ok(quote(s.message(i)?.as_bytes()))).collect::<Result<Vec<_>>>()?; return Ok(println!("{}", join(all))) }
        "message" => return Ok(println!("{}", quote(get!(r, Session, w[0]).message(n)?.as_bytes()))),
        "rewind_messages" => return get!(r, Session, w[0]).rewind_messages(n),
        "tokens" => { let s = get!(r, Session, w[0]); return Ok(println!("{}", join([s.n_tokens() as i32].into_iter().chain(s.tokens()?.into_iter().take(8))))) }
        "roles" => { let roles = get!(r, Session, w[0]).head_roles()?; return Ok(println!("{}", join(w[1..].iter().map(|name| field(roles.get(name).unwrap()))))) }
        "residency" => { let all = get!(r, Session, w[0]).residency()?; return Ok(println!("{} {} {}", all.len(), all.iter().min().unwrap(), all.iter().max().unwrap())) }
        "adapters" => {
            let uses = w[1..].chunks(2).map(|pair| match r.things.get(pair[0]) { Some(Thing::Adapter(a)) => (a, pair[1].parse().unwrap()), _ => panic!("{}", pair[0]) });
            let uses: Vec<(&Adapter, f32)> = uses.collect();
            return match r.things.get(w[0]) { Some(Thing::Session(s)) => s.set_adapters(&uses), _ => panic!("{}", w[0]) };
        }
        "rewind" => return get!(r, Session, w[0]).rewind(n), "save" => return get!(r, Session, w[0]).save(&rest(1)),
        "load" => return get!(r, Session, w[0]).load(&rest(1)),
        "load_buffer" => { let bytes = get!(r, Bytes, w[1]).clone(); return get!(r, Session, w[0]).load_buffer(&bytes) }
        "damage" => { *get!(r, Bytes, w[0]).last_mut().unwrap() ^= 1; return Ok(()) }
        "functions" => return functions(r, w[0], n, w[2], &rest(3)),
        "evaluate" if n == 0 => return get!(r, Session, w[0]).evaluate(&ids(2)),
        "evaluate" => { let l = get!(r, Session, w[0]).evaluate_logits(&ids(2))?; return Ok(println!("largest {}", join(l.chunks(l.len() / (w.len() - 2)).map(largest)))) }
        "numbers" => { let s = get!(r, Session, w[0]); let l = s.logits()?; return Ok(println!("{} {} {}", l.len(), largest(&l), s.embedding()?.len())) }
        "next" => return drain(get!(r, Generation, w[0]), n), "drain" => return drain(get!(r, Generation, w[0]), usize::MAX),
        "run" => { let mut seen = 0; return get!(r, Generation, w[0]).run(|event| { show(&event); seen += 1; seen != n }) }
        "cancel" => { let c = r.cancellers[w[0]].clone(); return Ok(std::thread::spawn(move || c.cancel()).join().unwrap()) }
        "inspect" => return Ok(println!("{}", yes(inspect(w[0])?.contains(&rest(1))))), "policies" => return Ok(println!("{}", yes(policies()?.contains(&rest(0))))),
        "allowed" => return Ok(println!("{}", get!(r, Matcher, w[0]).mask()?.iter().map(|x| x.count_ones()).sum::<u32>())),
        "accept" => return Ok(println!("{}", get!(r, Matcher, w[0]).accept(&ids(1))?)),
        "rewind_matcher" => return get!(r, Matcher, w[0]).rewind(number(1) as usize),
        "forced" => { let tokens = get!(r, Matcher, w[0]).forced()?; return Ok(println!("{}", format!("{} {}", tokens.len(), join(tokens)).trim())) }
        "match" => { let (n, complete) = get!(r, Matcher, w[0]).match_text(&rest(1))?; return Ok(println!("{} {}", n, yes(complete))) }
        "describe" => return Ok(println!("{}", yes(get!(r, Matcher, w[0]).describe()?.contains(&rest(1))))),
        "steps" => return Ok(println!("{}", yes(get!(r, Calibration, w[0]).steps()?.contains(&rest(1))))),
        "profile" => return Ok(println!("{}", yes(head_profile_import(&get!(r, Calibration, w[0]).profile()?)?.contains(&rest(1))))),
        "gates" => return Ok(println!("{}", yes(head_profile_import_gates(&rest(2), w[0].parse().unwrap())?.contains(w[1])))),
        _ => panic!("{}", verb),
    };
    if let Thing::Generation(g) = &made { r.cancellers.insert(w[0].to_owned(), g.canceller()); }
    r.things.insert(w[0].to_owned(), made);
    Ok(())
}

fn main() {
    set_hook(Box::new(|info| if info.payload().downcast_ref::<Raised>().is_none() { eprintln!("{}", info) }));
    let mut r = Runner::default();
    for line in std::fs::read_to_string(std::env::args().nth(1).unwrap()).unwrap().lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
        println!("> {}", line);
        let words: Vec<&str> = line.split(' ').collect();
        let rest = |i: usize| words.get(i + 1..).map_or(String::new(), |w| w.join(" ").replace("\\n", "\n"));
        match catch_unwind(AssertUnwindSafe(|| step(&mut r, words[0], &words[1..], &rest))) {
            Ok(Ok(())) => (),
            Ok(Err(e)) => println!("error {} {} {} {} {} {} {} {}", &e.status.name()[7..], e.line, e.column, e.offset, e.native_code, yes(e.bytes_requested > 0), yes(!e.message.is_empty()), if e.option.is_empty() { "-" } else { &e.option }),
            Err(payload) if payload.is::<Raised>() => println!("raised"),
            Err(payload) => resume_unwind(payload),
        }
    }
}
