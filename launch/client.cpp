#include "launch/client.hpp"

#include <capnp/serialize.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace wisp::launch {

Result<Client> Client::connect(const std::string& run_dir) {
  const std::string path = run_dir + "/control";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return invalid("the path " + path + " is too long for a socket");
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  Client client;
  client.socket_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!client.socket_.valid()) return io_error(std::string("socket: ") + std::strerror(errno));
  if (::connect(client.socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return unavailable("no launcher answers at " + path + ": " + std::strerror(errno));
  return client;
}

int Client::Answer::descriptor(const std::string& name) const {
  for (std::size_t i = 0; i < names.size() && i < descriptors.size(); ++i)
    if (names[i] == name) return descriptors[i].get();
  return -1;
}

Result<Client::Answer> Client::call(const std::function<void(proto::LaunchRequest::Builder)>& build,
                                    const std::vector<int>& descriptors) {
  capnp::MallocMessageBuilder message;
  build(message.initRoot<proto::LaunchRequest>());
  WISP_TRY(proto::send_packet(socket_.get(), message, descriptors));
  WISP_ASSIGN(auto packet, proto::receive_packet(socket_.get(), true));
  Answer answer;
  for (int fd : packet.descriptors) answer.descriptors.emplace_back(fd);
  if (packet.closed) return unavailable("the launcher went away before it answered");
  try {
    capnp::FlatArrayMessageReader reader(packet.message(), proto::reader_options());
    const auto reply = reader.getRoot<proto::LaunchReply>();
    answer.ok = reply.getOk();
    answer.text = reply.getText().cStr();
    answer.plan = proto::read_plan(reply.getPlan());
    answer.port = static_cast<std::uint16_t>(reply.getPort());
    answer.unix_socket = reply.getUnixSocket().cStr();
    answer.gdb_script = reply.getGdbScript().cStr();
    for (std::uint32_t pid : reply.getPids()) answer.pids.push_back(pid);
    for (auto name : reply.getDescriptors()) answer.names.emplace_back(name.cStr());
  } catch (const kj::Exception& e) {
    return io_error(std::string("the launcher's answer was not understood: ") + e.getDescription().cStr());
  }
  if (!answer.ok) return unavailable(answer.text);
  return answer;
}

void Client::wait_for_end() {
  for (;;) {
    auto packet = proto::receive_packet(socket_.get(), true);
    if (!packet.ok() || packet->closed) return;
    for (int fd : packet->descriptors) ::close(fd);
  }
}

}  // namespace wisp::launch
