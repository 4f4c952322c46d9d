@0xb1f8f2f6d0c94a11;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("wisp::proto");

# Control messages: one per SOCK_SEQPACKET packet. Fields are only ever added.

# Sizes and options of a run: what common/plan computes, what every stage reads at start.
struct RunPlan {
  model @0 :Text;
  modelName @1 :Text;
  runDir @2 :Text;
  profile @3 :Text;
  profileHash @4 :UInt64;
  topology @5 :Text;
  host @6 :Text;
  port @7 :Int32;
  io @8 :Text;
  checkExperts @9 :Bool;
  logitsDir @10 :Text;
  logLevel @11 :Text;
  layers @12 :UInt32;
  expertsPerLayer @13 :UInt32;
  expertExtents @14 :UInt32;
  topK @15 :UInt32;
  slots @16 :UInt32;
  stride @17 :UInt64;
  denseBytes @18 :UInt64;
  ctx @19 :UInt32;
  kvPages @20 :UInt32;
  kvPageBytes @21 :UInt64;
  records @22 :UInt32;
  parallel @23 :UInt32;
  promptChunk @24 :UInt32;
  threads @25 :UInt32;
  ramBudget @26 :UInt64;
  scratchBytes @27 :UInt64;
  journalBytes @28 :UInt64;
  desksBytes @29 :UInt64;
  pageTableBytes @30 :UInt64;
  processBytes @31 :UInt64;
  reserveBytes @32 :UInt64;
  minimumRam @33 :UInt64;
  kvFormat @34 :UInt32;
  naivePrefill @35 :Bool;
  profileReason @36 :Text;
  prefetchSlots @37 :UInt32;
  trace @38 :Text;
  draft @39 :Text;
  speculate @40 :Text;
  draftBytes @41 :UInt64;
  vocab @42 :UInt32;
  draftLog @43 :Text;
  headBytes @44 :UInt64;
  hiddenPageBytes @45 :UInt64;
  logprobs @46 :UInt32;
}

# Launcher to stage, on the inherited control socket.
struct ToStage {
  union {
    configure :group { plan @0 :RunPlan; stages @1 :List(UInt32); epochs @2 :List(UInt32); }
    armCrash :group { stage @3 :UInt32; point @4 :Text; countdown @5 :UInt32; signal @6 :UInt32; }
    logLevel @7 :Text;
  }
}

# Stage to launcher.
struct ToLauncher {
  union {
    failed :group { stage @0 :UInt32; why @1 :Text; }
    none @2 :Void;
  }
}

# `wisp`, `wisp-launch STATUS|...` and tests to the launcher, on <run dir>/control.
struct LaunchRequest {
  union {
    status @0 :Void;             # reply: StatusReply; read-only descriptors of life, desks, slabdir, journal attached
    stop @1 :Void;
    restart @2 :Text;            # stage
    gate @3 :UInt64;             # steps with a number below this may be published
    armCrash :group { stage @4 :Text; point @5 :Text; countdown @6 :UInt32; signal @7 :UInt32; }
    debug :group { stage @8 :Text; wait @9 :Bool; replace @10 :Text; }
  }
}
struct LaunchReply {
  ok @0 :Bool;
  text @1 :Text;                 # what went wrong, or a line for the user
  plan @2 :RunPlan;
  port @3 :UInt32;
  unixSocket @4 :Text;
  descriptors @5 :List(Text);    # names of the attached descriptors, in order: life, desk.gateway, ..., slabdir, journal
  pids @6 :List(UInt32);         # by StageId; 0 = none
  gdbScript @7 :Text;
}
